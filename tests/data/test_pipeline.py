import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

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


@pytest.mark.parametrize("tokens_per_batch", [9, 36, 4096])
def test_one_pass_gives_every_example_once_and_ends(tokens_per_batch):
    batches, plan = some_batches(shuffle=False, repeat=False, tokens_per_batch=tokens_per_batch)
    with batches:
        epoch = list(batches)
        assert next(batches, None) is None
    assert len(epoch) == len(plan)
    seen = [int(row[0]) for b in epoch for row in b["tokens"][b["tokens_mask"].any(axis=1)]]
    assert sorted(seen) == list(range(50))


def test_resumed_mid_epoch_at_an_epochs_edge_and_twice_gives_the_same_batches():
    whole, plan = some_batches()
    edge = len(plan)
    with whole:
        expected = take(whole, 2 * edge + 3)
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


def test_a_new_process_continues_with_the_same_batches():
    batches, plan = some_batches()
    with batches:
        take(batches, 5)
        state = batches.get_state()
        expected = take(batches, len(plan))
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_pipeline import some_batches, take\n"
        "batches, plan = some_batches()\n"
        "batches.restore(json.loads(sys.argv[2]))\n"
        "print(json.dumps(take(batches, len(plan))))"
    )
    here = Path(__file__).parent
    command = [sys.executable, "-c", script, str(here), json.dumps(state)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=here.parents[1])
    assert json.loads(run.stdout) == expected


def test_going_back_replays_and_a_start_skips():
    batches, _ = some_batches()
    with batches:
        state = batches.get_state()
        first = take(batches, 6)
        batches.restore(state)
        assert take(batches, 6) == first
    later, _ = some_batches(start=4)
    with later:
        assert take(later, 2) == first[4:]


@pytest.mark.parametrize("change", [dict(seed=1), dict(tokens_per_batch=45), dict(shuffle=False)])
def test_a_position_in_other_batches_is_refused(change):
    batches, _ = some_batches()
    other, _ = some_batches(**change)
    with (
        batches,
        other,
        pytest.raises(LabError, match="belongs to other batches.*new dir") as error,
    ):
        other.restore(batches.get_state())
    assert "\n" not in str(error.value)


def test_a_state_that_is_none_of_ours_or_out_of_range_is_refused():
    batches, plan = some_batches(repeat=False)
    with batches:
        state = batches.get_state()
        with pytest.raises(LabError, match="not a data state"):
            batches.restore({"next_index": 3})
        for step in (-1, len(plan) + 1):
            with pytest.raises(LabError, match=f"data step {step} is not within 0 and"):
                batches.restore(state | {"next_index": step})
        assert len(list(batches)) == len(plan)  # a refusal leaves the place as it was


def test_closing_ends_the_reading_threads():
    before = set(threading.enumerate())
    batches, _ = some_batches()
    with batches:
        take(batches, 3)
        started = set(threading.enumerate()) - before
        assert started
    for thread in started:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in started)


def test_bad_data_reaches_the_caller_as_the_error_it_is():
    def refuse(ids, shape):
        raise LabError("a bad row")

    batches = Batches(BatchPlan(np.ones((3, 1), int), [(1,)], 3), refuse)
    with batches, pytest.raises(LabError) as error:
        next(batches)
    assert str(error.value) == "a bad row"
