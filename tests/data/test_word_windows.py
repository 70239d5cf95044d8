"""Windows and drawn words against counts, distances and the paper's probabilities."""

import numpy as np
import pytest

from transformer_lab.data.ragged import Ragged
from transformer_lab.data.word_windows import WindowConfig, Windows, keep_probabilities
from transformer_lab.errors import LabError

VOCAB, FIRST = 40, 4
RNG = np.random.default_rng(0)
DOCUMENTS = [RNG.choice(VOCAB - 3, size=n).tolist() for n in (60, 1, 0, 200)]  # some are unknown
IDS = Ragged.from_lists(DOCUMENTS)
PLAIN = WindowConfig(window=3, negatives=4, subsample=0.0)


def windows(config=PLAIN, cbow=False, ids=IDS):
    return Windows(ids, np.bincount(ids.values, minlength=VOCAB), config, cbow, FIRST)


def batches(of, rows=32, seed=0, epochs=1):
    plan = of.plan(rows, seed)
    return [(plan[i][1], of.load(plan[i][1], (1,))) for i in range(epochs * len(plan))]


def test_pairs_are_words_of_one_document_within_the_window_and_each_word_is_a_middle_once():
    found, middles = windows(), []
    starts = np.repeat(np.arange(4), IDS.lengths())
    for ids, batch in batches(found):
        middles += [i for i in ids[:, 0].tolist() if i >= 0]
        assert batch["outputs"].shape == (32, 6, 5) and batch["inputs"].shape == (32, 1)
        for row, column in zip(*np.nonzero(batch["counted"]), strict=True):
            middle, distance = ids[row, 0], (-3, -2, -1, 1, 2, 3)[column]
            assert middle >= 0 and starts[middle] == starts[middle + distance]
            pair = batch["inputs"][row, 0], batch["outputs"][row, column, 0]
            assert pair == (IDS.values[middle], IDS.values[middle + distance])
            assert min(pair) >= FIRST
    assert sorted(middles) == list(range(261))
    for (_, one), (_, same) in zip(batches(found), batches(windows()), strict=True):
        assert all(np.array_equal(one[name], same[name]) for name in one)  # drawn by the step


def test_a_bag_of_words_has_the_same_windows_the_other_way_round():
    both = zip(batches(windows()), batches(windows(cbow=True)), strict=True)
    for (_, skip), (_, bag) in both:
        np.testing.assert_array_equal(bag["inputs_mask"], skip["counted"])
        np.testing.assert_array_equal(bag["inputs"], skip["outputs"][..., 0])
        np.testing.assert_array_equal(bag["outputs"][:, 0, 0], skip["inputs"][:, 0])
        np.testing.assert_array_equal(bag["counted"][:, 0], skip["counted"].any(axis=1))


def test_near_words_are_neighbours_more_often_and_drawn_words_follow_the_power():
    """At distance d with probability (window - d + 1) / window."""
    ids = Ragged.from_lists([RNG.choice([4, 4, 4, 4, 4, 4, 4, 4, 5, 6], size=20_000).tolist()])
    ((_, batch),) = batches(windows(PLAIN, ids=ids), rows=20_000)
    shares = batch["counted"].mean(axis=0)
    np.testing.assert_allclose(shares, [1 / 3, 2 / 3, 1, 1, 2 / 3, 1 / 3], atol=0.015)
    counts = np.bincount(ids.values, minlength=7)[4:].astype(float)
    drawn = np.bincount(batch["outputs"][..., 1:].ravel(), minlength=7)[4:]
    want = counts**0.75 / (counts**0.75).sum()
    np.testing.assert_allclose(drawn / drawn.sum(), want, atol=0.005)
    outputs = batch["outputs"]
    np.testing.assert_array_equal(
        batch["outputs_mask"][..., 1:], outputs[..., 1:] != outputs[..., :1]
    )
    assert batch["outputs_mask"][..., 0].all()


def test_frequent_words_stay_with_the_square_root_of_the_threshold():
    kept = keep_probabilities(np.array([0, 900, 90, 9, 1]), 1e-2)
    np.testing.assert_allclose(kept[1:4], [np.sqrt(1e-2 / 0.9), np.sqrt(1e-2 / 0.09), 1.0])
    assert (keep_probabilities(np.array([0, 900, 90]), 0.0) == 1).all()
    ids = Ragged.from_lists([RNG.choice([4, 5], size=20_000, p=[0.9, 0.1]).tolist()])
    config = WindowConfig(window=1, negatives=1, subsample=0.1)
    ((_, batch),) = batches(windows(config, ids=ids), rows=20_000)
    stays = {4: np.sqrt(0.1 / 0.9), 5: 1.0}
    for middle in (4, 5):
        for other in (4, 5):
            mine = (batch["inputs"] == middle) & (batch["outputs"][..., 0] == other)
            share = batch["counted"][mine].mean()
            assert share == pytest.approx(stays[middle] * stays[other], abs=0.03)


def test_impossible_settings_and_documents_without_a_known_word_are_refused():
    for change in ({"window": 0}, {"negatives": 0}, {"subsample": -1.0}):
        with pytest.raises(LabError, match=f"^windows.{next(iter(change))} = "):
            WindowConfig(**change)
    with pytest.raises(LabError, match="no word of the training documents"):
        windows(ids=Ragged.from_lists([[3, 3, 1]]))
