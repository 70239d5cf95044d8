"""Times of words: the path by brute force, the reference's frames, and words of several scripts."""

import functools

import numpy as np
import pytest

from transformer_lab.decoding.word_times import (
    Aligned,
    Word,
    heads_of,
    shortened,
    smoothed,
    token_frames,
    warped,
    words_of,
)
from transformer_lab.errors import LabError
from transformer_lab.models.whisper import WhisperConfig


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (3, 5), (5, 3), (4, 4)])
def test_no_path_costs_less(shape):
    cost = np.random.default_rng(0).normal(size=shape)

    @functools.cache
    def least(i, j):
        """The least cost of all paths to an entry."""
        before = [(a, b) for a, b in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if min(a, b) >= 0]
        return cost[i, j] + min((least(*step) for step in before), default=0.0)

    path = warped(cost)
    assert path[0].tolist() == [0, 0] and path[-1].tolist() == [n - 1 for n in shape]
    assert {tuple(step) for step in np.diff(path, axis=0)} <= {(0, 1), (1, 0), (1, 1)}
    np.testing.assert_allclose(cost[*path.T].sum(), least(shape[0] - 1, shape[1] - 1), rtol=1e-12)


def test_a_filter_takes_the_median_of_seven_values_mirrored_at_the_ends():
    x = np.random.default_rng(1).normal(size=(2, 9))
    mirrored = np.concatenate([x[:, 3:0:-1], x, x[:, -2:-5:-1]], axis=1)
    want = [[sorted(row[i : i + 7])[3] for i in range(9)] for row in mirrored]
    np.testing.assert_array_equal(smoothed(x), want)
    np.testing.assert_array_equal(smoothed(x[:, :3]), x[:, :3])  # too short for it


def test_tokens_begin_at_the_frames_of_the_reference():
    """By the filter and the path of transformers 5.24.0's Whisper, on the same weights."""
    rng = np.random.default_rng(7)
    token, frame = np.arange(9)[None, :, None], np.arange(40)[None, None, :]
    weights = np.exp(-0.5 * ((frame - 4.5 * token) / 3.0) ** 2) + 0.4 * rng.random((2, 9, 40))
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    assert token_frames(weights, lead=2).tolist() == [0, 7, 11, 16, 21, 25, 29]


def aligned(count):
    """Each token lasts 0.2 s, and its probability is 1 / (its number + 1)."""
    starts = 0.2 * np.arange(count + 1)
    return Aligned(starts[:-1], starts[1:], 1 / np.arange(1, count + 1))


def words(pieces, spaced=True):
    """The words of a text of these pieces, which are bytes or characters."""
    joined = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    text_of = lambda ids: b"".join(joined[i] for i in ids).decode(errors="replace").lstrip()  # noqa: E731
    found = words_of(range(len(pieces)), aligned(len(pieces)), text_of, spaced)
    return [(w.word, round(w.start, 3), round(w.end, 3), round(w.probability, 3)) for w in found]


def test_punctuation_belongs_to_its_word_and_takes_no_time():
    said = [
        " \u00ab",
        "Caf",
        "\u00e9".encode()[:1],
        "\u00e9".encode()[1:],
        "s",
        ",",
        " don",
        "'t",
        " !",
    ]
    assert words(said) == [
        ("\u00abCaf\u00e9s,", 0.2, 1.0, round((1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 4, 3)),
        ("don't", 1.2, 1.6, round((1 / 7 + 1 / 8) / 2, 3)),
        ("!", 1.6, 1.8, round(1 / 9, 3)),
    ]
    assert words([]) == []


def test_without_blanks_a_word_is_a_token_of_whole_characters():
    said = ["\u4eca\u65e5", "\u306f".encode()[:2], "\u306f".encode()[2:], "\u3002", "\u96e8"]
    found = words(said, spaced=False)
    assert [row[:3] for row in found] == [
        ("\u4eca\u65e5", 0.0, 0.2), ("\u306f\u3002", 0.2, 0.6), ("\u96e8", 0.8, 1.0),
    ]  # fmt: skip


def test_a_sentence_begins_after_the_pause_before_it():
    rows = [("One", 0.0, 2.0), ("two.", 2.0, 2.2), ("Three", 2.2, 4.0), ("four", 4.0, 5.0)]
    texts = [[Word(*row, 1.0) for row in rows[:3]], [Word(*rows[3], 1.0)]]
    starts = lambda pause: [w.start for text in shortened(texts, pause) for w in text]  # noqa: E731
    # The median of the lengths is above 0.7 s: a sentence's first word lasts 1.4 s at most.
    np.testing.assert_allclose(starts(True), [0.6, 2.0, 2.6, 4.0])
    np.testing.assert_allclose(starts(False), [0.0, 2.0, 2.6, 4.0])
    assert shortened([[], []], True) == [[], []]


def test_heads_are_those_of_the_model_or_of_the_upper_half():
    config = WhisperConfig(vocab_size=9, decoder_layers=3, decoder_heads=2, heads=3)
    assert heads_of(config, ()) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert heads_of(config, ((0, 1),)) == ((0, 1),)
    with pytest.raises(LabError, match="no head 2 in layer 1"):
        heads_of(config, ((1, 2),))
