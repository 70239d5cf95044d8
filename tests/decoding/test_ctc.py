"""Prefix beam search against all texts, and the parts of a file."""

from dataclasses import replace

import numpy as np
import pytest

from tests.ops.test_ctc import every_text
from transformer_lab.decoding.ctc import CTCConfig, collapsed, greedy, prefix_beam
from transformer_lab.decoding.ctc_reader import quietest
from transformer_lab.errors import LabError
from transformer_lab.text.ngram import NGram

STATES, TOKENS, EOS = 5, 4, 3  # token 3 ends a text and is in none
WIDE = CTCConfig(method="beam", beam_size=1000, prune=100.0)


def drawn(seed, scale=1.0):
    logits = np.random.default_rng(seed).normal(0, scale, (STATES, TOKENS))
    logits[:, EOS] = -np.inf
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def test_a_wide_beam_finds_every_text_with_its_probability():
    for seed in range(3):
        log_probs = drawn(seed)
        found = prefix_beam(log_probs, 0, WIDE, banned=(EOS,))
        brute = {t: p for t, p in every_text(log_probs).items() if p > -np.inf}
        assert {r.ids for r in found} == set(brute)
        for reading in found:
            assert reading.score == reading.log_prob == pytest.approx(brute[reading.ids])
        assert found[0].ids == max(brute, key=brute.get)


def test_with_an_n_gram_the_best_text_is_that_of_the_sums():
    model = NGram.train([[1, 2, 1], [2, 1], [1, 1, 2]], 2, TOKENS, bos_id=0, eos_id=EOS)
    config = replace(WIDE, ngram_weight=0.7, length_bonus=0.4)
    for seed in range(3):
        log_probs = drawn(seed)
        found = prefix_beam(log_probs, 0, config, model.after(), EOS, banned=(EOS,))
        expected = {
            text: value + 0.7 * model.log_probs(list(text)).sum() + 0.4 * len(text)
            for text, value in every_text(log_probs).items() if value > -np.inf
        }  # fmt: skip
        for reading in found:
            assert reading.score == pytest.approx(expected[reading.ids])
        assert found[0].ids == max(expected, key=expected.get)


def test_the_likeliest_text_need_not_be_that_of_the_likeliest_alignment():
    """Blank and token 1 at 0.6 and 0.4 twice: the empty text has 0.36, and "1" 0.64."""
    log_probs = np.log([[0.6, 0.4], [0.6, 0.4]])
    assert greedy(log_probs, 0).ids == ()
    best = prefix_beam(log_probs, 0, WIDE)[0]
    assert best.ids == (1,) and np.exp(best.log_prob) == pytest.approx(0.64)


def test_a_narrow_beam_of_confident_states_is_greedy_and_pruning_leaves_unlikely_tokens_out():
    log_probs = drawn(4, scale=30.0)
    narrow = CTCConfig(method="beam", beam_size=1, prune=0.0)
    assert prefix_beam(log_probs, 0, narrow)[0].ids == greedy(log_probs, 0).ids
    few = prefix_beam(drawn(5), 0, CTCConfig(beam_size=1000, prune=0.0), banned=(EOS,))
    assert len(few) < len(prefix_beam(drawn(5), 0, WIDE, banned=(EOS,)))


def test_repeats_and_blanks_are_removed_and_no_state_gives_no_text():
    assert collapsed(np.array([1, 1, 0, 1, 2]), 0) == [1, 1, 2]
    nothing = np.zeros((0, TOKENS))
    assert greedy(nothing, 0).ids == () == prefix_beam(nothing, 0, WIDE)[0].ids


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"method": "gredy"}, 'did you mean "greedy"'), ({"beam_size": 0}, "ctc.beam_size = 0"),
     ({"prune": -1.0}, "ctc.prune = -1"), ({"seconds": 0.0}, "ctc.seconds = 0")],
)  # fmt: skip
def test_impossible_settings_are_refused(changes, words):
    with pytest.raises(LabError, match=words):
        CTCConfig(**changes)


def test_a_part_of_a_file_ends_where_it_is_quiet():
    samples = np.ones(48_000, np.float32)
    samples[5_000:9_000] = 0  # quiet, but in the first two thirds
    samples[40_000:42_000] = 0
    assert 40_000 < quietest(samples) < 42_000
    assert quietest(np.ones(600, np.float32)) == 600
