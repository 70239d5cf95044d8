import json
import threading
from functools import partial

import numpy as np
import pytest

from transformer_lab.data.batching import BatchPlan
from transformer_lab.data.pipeline import Batches
from transformer_lab.data.ragged import Ragged, fill, lengths_of
from transformer_lab.errors import LabError

SHAPES = [(4,), (9,)]


def some_data():
    """Example i holds the token i as often as its length says."""
    lengths = np.random.default_rng(1).integers(1, 10, 50)
    return {"tokens": Ragged.from_lists([[i] * n for i, n in enumerate(lengths.tolist())])}


def some_batches(seed=0, tokens_per_batch=36, shuffle=True, **options):
    fields = some_data()
    plan = BatchPlan(lengths_of(fields), SHAPES, tokens_per_batch, seed=seed, shuffle=shuffle)
    return Batches(plan, partial(fill, fields, pad_id=99), **options), plan


def take(batches, count):
    return [next(batches)["tokens"].tolist() for _ in range(count)]


@pytest.mark.parametrize("tokens_per_batch", [36, 9000])  # 9000: epochs shorter than the read-ahead
def test_batches_follow_the_plan_through_the_epochs(tokens_per_batch):
    batches, plan = some_batches(tokens_per_batch=tokens_per_batch)
    with batches:
        for step in range(3 * len(plan) + 1):
            bucket, ids = plan[step]
            expected = fill(some_data(), ids, SHAPES[bucket], 99)
            batch = next(batches)
            assert batch.keys() == expected.keys() == {"tokens", "tokens_mask"}
            for name, array in batch.items():
                np.testing.assert_array_equal(array, expected[name])


def test_resumed_mid_epoch_at_an_epochs_edge_and_twice_gives_the_same_batches():
    whole, plan = some_batches()
    edge = len(plan)
    with whole:
        expected = take(whole, 2 * edge + 3)
        whole.restore(whole.get_state() | {"next_index": 0})  # and goes back
        assert take(whole, 6) == expected[:6]
    got, state = [], None
    for stop in (edge // 2, edge, edge + 2, 2 * edge + 3):
        part, _ = some_batches()
        with part:
            if state:
                part.restore(json.loads(json.dumps(state)))
            got += take(part, stop - len(got))
            state = part.get_state()  # the read-ahead must not count
            assert state["next_index"] == stop
    assert got == expected
    assert expected[:edge] != expected[edge : 2 * edge]


def test_a_state_that_is_none_of_ours_or_out_of_range_is_refused():
    batches, _ = some_batches()
    with batches:
        first, state = take(batches, 2), batches.get_state()
        for bad, words in (
            ({"next_index": 3}, "not a data state"),
            (state | {"next_index": -1}, "data step -1 is negative"),
        ):
            with pytest.raises(LabError, match=words):
                batches.restore(bad)
        assert batches.get_state() == state  # a refusal leaves the place as it was
        batches.restore(state | {"next_index": 0})
        assert take(batches, 2) == first


def test_bad_data_is_the_callers_error_and_closing_ends_the_reading_threads():
    def refuse(ids, shape):
        raise LabError("a bad row")

    batches = Batches(BatchPlan(np.ones((3, 1), int), [(1,)], 3), refuse)
    with batches, pytest.raises(LabError) as error:
        next(batches)
    assert str(error.value) == "a bad row"
    before = set(threading.enumerate())
    batches, _ = some_batches()
    with batches:
        take(batches, 3)
        started = set(threading.enumerate()) - before
        assert started
    for thread in started:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in started)
