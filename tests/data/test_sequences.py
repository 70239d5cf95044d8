"""Generated sequences: their rules by brute force, their distributions, what no model may see."""

import re
from itertools import permutations

import numpy as np
import pytest

from transformer_lab.data.images.pixels import to_levels
from transformer_lab.data.images.sources import ImageConfig, load_images
from transformer_lab.data.sequences import SequencesConfig, load_sequences, make
from transformer_lab.data.sources.listops import OPERATORS, TOKENS, draw_trees
from transformer_lab.errors import LabError

SMALL = {"train_size": 60, "validation_size": 20, "test_size": 30}


def rows_of(source, size=200, length=None, **settings):
    """Training rows as (tokens, {position: target}), in Python's own numbers."""
    config = SequencesConfig(source=source, **settings)
    found = make(config, "train", length or config.length, size)
    assert not found.targets[~found.mask].any() and len(found) == size
    for tokens, targets, mask in zip(found.tokens, found.targets, found.mask, strict=True):
        yield tokens.tolist(), {int(i): int(targets[i]) for i in np.flatnonzero(mask)}


# ListOps.

INNERMOST = re.compile(r"\[(MIN|MAX|MED|SM)((?: \d)+) \]")


def value(match: re.Match) -> str:
    digits = sorted(map(int, match[2].split()))
    middle = len(digits) // 2
    found = {
        "MIN": digits[0],
        "MAX": digits[-1],
        "SM": sum(digits) % 10,
        "MED": digits[middle] if len(digits) % 2 else (digits[middle - 1] + digits[middle]) // 2,
    }
    assert 2 <= len(digits) <= 10
    return str(found[match[1]])


def test_listops_is_what_rewriting_the_innermost_brackets_gives():
    halves, operators = 0, set()
    for tokens, targets in rows_of("listops", 150, length=128):
        ((last, target),) = targets.items()
        assert 32 < last + 1 < 128 and not any(tokens[last + 1 :])
        text, depth = " ".join(TOKENS[i] for i in tokens[: last + 1]), 1
        operators.update(text.split())
        while "[" in text:
            halves += sum(
                match[1] == "MED"
                and value(match) != str(np.median(np.array(match[2].split(), int)))
                for match in INNERMOST.finditer(text)
            )
            text, depth = INNERMOST.sub(value, text), depth + 1
        assert text == str(target) and depth <= 10
    assert halves and set(OPERATORS) < operators == set(TOKENS)


def test_listops_is_guessed_by_its_first_operator_as_often_as_a_transformer_is_right():
    size, found = 1200, np.zeros((4, 10))
    rows = make(SequencesConfig(source="listops"), "train", 2000, size)
    row, last = np.nonzero(rows.mask)
    assert (row == np.arange(size)).all() and last.min() + 1 > 500 and last.max() + 1 < 2000
    np.add.at(found, (rows.tokens[:, 0] - 10, rows.targets[row, last]), 1)
    assert found.sum(axis=0).max() / size == pytest.approx(0.165, abs=0.03)
    assert found.max(axis=1).sum() / size == pytest.approx(0.363, abs=0.04)


def test_listops_trees_have_operators_and_arguments_as_often_as_published():
    draw = np.random.default_rng(0)
    levels = [draw_trees(draw)[0] for _ in range(8)]
    tokens, nodes, _ = (np.concatenate(part) for part in zip(*(x[0] for x in levels), strict=True))
    inner = tokens >= 10
    assert inner.mean() == pytest.approx(0.25, abs=0.012)
    np.testing.assert_allclose(np.bincount(nodes[inner])[2:] / inner.sum(), 1 / 9, atol=0.02)
    assert not (levels[0][9][0] >= 10).any() and (levels[0][8][0] >= 10).any()


# Recall, copying, induction.


def test_a_query_of_mqar_asks_for_the_value_of_its_key():
    for tokens, targets in rows_of("mqar", length=40, pairs=5, vocabulary=32):
        pairs = dict(zip(tokens[0:10:2], tokens[1:10:2], strict=True))
        assert len(pairs) == len(set(pairs.values())) == len(targets) == 5
        assert all(1 <= k < 16 <= v < 32 for k, v in pairs.items())
        assert all(i >= 10 and i % 2 == 0 for i in targets)
        assert {tokens[i]: target for i, target in targets.items()} == pairs


def test_gaps_of_mqar_are_draws_without_putting_back_from_the_power_law():
    chances = np.arange(1.0, 4.0) ** (0.3 - 1)
    chances /= chances.sum()
    expected = dict.fromkeys([(0, 1), (0, 2), (1, 2)], 0.0)
    for a, b in permutations(range(3), 2):
        expected[min(a, b), max(a, b)] += chances[a] * chances[b] / (1 - chances[a])
    size, counts = 6000, dict.fromkeys(expected, 0)
    settings = {"length": 10, "pairs": 2, "vocabulary": 16, "gap_power": 0.3}
    for _, targets in rows_of("mqar", size, **settings):
        counts[tuple(sorted((i - 4) // 2 for i in targets))] += 1
    for places, chance in expected.items():
        assert counts[places] / size == pytest.approx(chance, abs=0.03)


def test_selective_copying_asks_for_what_is_no_noise_in_its_order():
    places = np.zeros(24, int)
    for tokens, targets in rows_of("selective_copying", length=30, remembered=6, vocabulary=5):
        body, end = tokens[:24], tokens[24:]
        content = [token for token in body if token]
        assert end == [4] * 6 and 4 not in body and len(content) == 6
        assert targets == dict(zip(range(24, 30), content, strict=True))
        places += np.array(body) > 0
    np.testing.assert_allclose(places / 200, 6 / 24, atol=0.16)


def test_induction_asks_for_what_followed_the_special_token():
    firsts = set()
    for tokens, targets in rows_of("induction_heads", 400, length=9, vocabulary=5):
        first = tokens.index(4)
        assert [i for i, token in enumerate(tokens) if token == 4] == [first, 8]
        assert targets == {8: tokens[first + 1]}
        firsts.add(first)
    assert firsts == set(range(7))


def test_pixels_are_the_rows_of_an_image_with_its_class_at_the_last():
    config = SequencesConfig(source="pixels", images="digits", length=16, vocabulary=16,
                             train_size=50, test_size=0)  # fmt: skip
    images, found = load_images(ImageConfig(source="digits")), load_sequences(config)
    assert [len(found.train), len(found.test)] == [50, len(images.test)]
    whole = np.stack([row["image"][..., 0] for row in images.test])
    np.testing.assert_array_equal(found.test.tokens, to_levels(whole, 2, 16).reshape(-1, 16))
    assert found.test.mask.sum(axis=0).tolist() == [0] * 15 + [len(whole)]
    assert found.test.targets[:, -1].tolist() == images.test.labels
    assert make(config, "test", 64, 5).tokens.shape == (5, 64)


# Splits.


@pytest.mark.parametrize("source", ["mqar", "selective_copying", "induction_heads", "listops"])
def test_splits_are_the_same_every_time_and_differ_by_seed_and_length(source):
    config = {"source": source, "length": 64, **SMALL}
    first, again = (load_sequences(SequencesConfig(**config)) for _ in range(2))
    others = [load_sequences(SequencesConfig(**config | x)) for x in ({"seed": 1}, {"length": 66})]
    assert first.fingerprint() == again.fingerprint()
    assert len({first.fingerprint(), *(other.fingerprint() for other in others)}) == 3
    assert first.report == {"train": 60, "validation": 20, "test": 30}
    longer = [make(SequencesConfig(**config), split, 96, 10).tokens for split in ("test", "train")]
    assert longer[0].shape == (10, 96) and (longer[0] != longer[1]).any()


def test_no_held_out_sequence_is_trained_on():
    config = SequencesConfig(source="induction_heads", length=6, vocabulary=3, train_size=400,
                             validation_size=10, test_size=10)  # fmt: skip
    found = load_sequences(config)
    held = {*map(bytes, found.validation.tokens), *map(bytes, found.test.tokens)}
    assert not held & set(map(bytes, found.train.tokens)) and len(found.train) > 100
    assert found.report["in_another_split"] == 400 - len(found.train) > 0
    with pytest.raises(LabError, match="too few sequences to hold some out"):
        load_sequences(SequencesConfig(source="induction_heads", length=3, vocabulary=2, **SMALL))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"source": "mqarr"}, 'did you mean "mqar"'),
        ({"length": 15}, "4 pairs and as many queries need 16 tokens"),
        ({"vocabulary": 8}, "config.data.vocabulary has no 4 different tokens"),
        ({"train_size": 0}, "config.data.train_size = 0"),
        ({"seed": -1}, "config.data.seed = -1"),
        ({"pairs": 0}, "config.data.pairs = 0"),
        ({"source": "selective_copying", "length": 31}, "need a config.data.length of 32 or more"),
        ({"source": "induction_heads", "length": 2}, "config.data.length = 2 must be 3 or more"),
        ({"source": "listops", "vocabulary": 14}, "must be 15 or more for listops"),
        ({"source": "pixels", "images": "digits"}, "config.data.vocabulary = 9 levels"),
        ({"source": "pixels", "images": "digits", "length": 32}, "set config.data.length = 64"),
        ({"source": "pixels", "images": "digit"}, 'did you mean "digits"'),
    ],
)
def test_a_wrong_setting_is_one_line(settings, words):
    changes = {"vocabulary": 9} if "9 levels" in words else {}
    with pytest.raises(LabError, match=words):
        load_sequences(SequencesConfig(**SMALL | settings | changes))
