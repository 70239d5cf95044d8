"""Span corruption: lengths, interleaving, randomness."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lab.data.span_corruption import SpansConfig, corrupt, span_mask
from transformer_lab.errors import LabError

T5 = SpansConfig()
SENTINELS = list(range(999, 899, -1))


def restore(inputs, targets, sentinels):
    """The text: the input with each sentinel replaced by what the target has after it."""
    marks, spans = set(sentinels), {}
    mark = None
    for token in targets[:-1].tolist():
        if token in marks:
            mark = token
        else:
            spans.setdefault(mark, []).append(token)
    parts = (spans.get(i, []) if i in marks else [i] for i in inputs[:-1].tolist())
    return [token for part in parts for token in part]


def corrupted(length, seed=0, config=T5):
    ids = np.arange(10, 10 + length, dtype=np.int32)
    mask = span_mask(length, config, np.random.default_rng(seed))
    return ids, mask, *corrupt(ids, mask, SENTINELS, 1)


def test_568_raw_tokens_make_512_inputs_and_114_targets():
    assert T5.lengths(568) == (512, 114)
    assert T5.raw_length(512) == 568
    assert T5.raw_length(1000, targets=114) == 569  # which has an input of 513
    _, mask, inputs, targets = corrupted(568)
    assert (len(inputs), len(targets), mask.sum()) == (512, 114, 85)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(0, 9), st.sampled_from([0.15, 0.5, 0.9]))
def test_inputs_and_targets_interleave_back_to_the_text(length, seed, rate):
    config = SpansConfig(rate=rate)
    ids, mask, inputs, targets = corrupted(length, seed, config)
    assert restore(inputs, targets, SENTINELS) == ids.tolist()
    assert (len(inputs), len(targets)) == config.lengths(length)
    assert inputs[-1] == targets[-1] == 1
    marks = [i for i in inputs.tolist() if i in SENTINELS]
    assert marks == SENTINELS[: len(marks)] == [i for i in targets.tolist() if i in SENTINELS]
    assert mask.sum() == config.counts(length)[0]


@pytest.mark.parametrize("length", range(1, 10))
def test_texts_of_1_to_9_tokens_hide_at_least_one_and_keep_one_if_they_can(length):
    ids, mask, inputs, targets = corrupted(length)
    assert 1 <= mask.sum() <= max(length - 1, 1)
    assert restore(inputs, targets, SENTINELS) == ids.tolist()
    assert length == 1 or not mask[0]


def test_spans_have_the_mean_length_and_stand_anywhere():
    masks = np.stack([corrupted(100, seed)[1] for seed in range(400)])
    assert (masks.sum(axis=1) == 15).all()
    starts = masks & ~np.pad(masks[:, :-1], ((0, 0), (1, 0)))
    assert (starts.sum(axis=1) == 5).all()  # 15 tokens in spans of 3
    assert not masks[:, 0].any() and masks[:, -1].all()  # runs take turns, a kept one first
    assert abs(masks[:, 20:80].mean() - 0.14) < 0.02
    assert len({mask.tobytes() for mask in masks}) == 400
    np.testing.assert_array_equal(corrupted(100, 3)[1], masks[3])


def test_impossible_settings_and_too_few_sentinels_are_refused():
    ids, mask = np.arange(568, dtype=np.int32), corrupted(568)[1]
    with pytest.raises(LabError, match="28 spans .* set tokenizer.extra_ids to at least 28"):
        corrupt(ids, mask, SENTINELS[:27], 1)
    with pytest.raises(LabError, match="rate = 1.5"):
        SpansConfig(rate=1.5)
    with pytest.raises(LabError, match="an input of 1 tokens"):
        T5.raw_length(1)
