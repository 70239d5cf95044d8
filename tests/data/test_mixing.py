"""Mixtures: shares of tasks, order, and several pairs a row, tasks side by side in a batch."""

import numpy as np
import pytest

from transformer_lab.data.mixing import (
    MixedPlan,
    PackedPairsPlan,
    join_rows,
    mixing_rates,
    pack_pairs,
)
from transformer_lab.data.ragged import Ragged, fill
from transformer_lab.errors import LabError

SIZES = [100, 40, 10]
TASKS = np.repeat([0, 1, 2], SIZES)
SHAPES = [(4, 3), (9, 6)]


def make_plan(rates=(0.5, 0.3, 0.2), seed=0):
    lengths = np.random.default_rng(1).integers(1, 7, (150, 2)) + [[2, 0]]
    return MixedPlan(lengths, TASKS, np.array(rates), SHAPES, 60, seed=seed)


def epoch_of(plan, epoch):
    steps = range(epoch * len(plan), (epoch + 1) * len(plan))
    ids = np.concatenate([plan[step][1][:, 0] for step in steps])
    return ids[ids >= 0]


def test_rates_are_proportional_capped_or_flattened():
    np.testing.assert_allclose(mixing_rates(SIZES), [100 / 150, 40 / 150, 10 / 150])
    np.testing.assert_allclose(mixing_rates(SIZES, limit=40), [40 / 90, 40 / 90, 10 / 90])
    roots = np.sqrt([40, 40, 10])
    np.testing.assert_allclose(mixing_rates(SIZES, 40, 2.0), roots / roots.sum())
    np.testing.assert_allclose(mixing_rates(SIZES, temperature=1e9), [1 / 3] * 3, rtol=1e-6)
    for arguments in (([],), ([3, 0],), ([3], -1), ([3], 0, 0.5)):
        with pytest.raises(LabError, match="mix"):
            mixing_rates(*arguments)


def test_an_epoch_draws_each_task_at_its_rate_in_shapes_that_hold_it():
    plan = make_plan()
    for epoch in range(3):
        drawn = epoch_of(plan, epoch)
        counts = np.bincount(TASKS[drawn], minlength=3)
        np.testing.assert_array_equal(counts / counts.sum(), plan.shares())
        np.testing.assert_allclose(plan.shares(), [0.5, 0.3, 0.2], atol=0.01)
    for step in range(len(plan)):
        bucket, rows = plan[step]
        ids = rows[rows[:, 0] >= 0, 0]
        assert (plan.lengths[ids] <= SHAPES[bucket]).all() and len(rows) == plan.rows(bucket)


def test_a_task_uses_all_its_examples_before_one_comes_again():
    plan = make_plan()
    drawn = np.concatenate([epoch_of(plan, epoch) for epoch in range(20)])
    counts = np.bincount(drawn, minlength=150)
    for task in range(3):
        for bucket in range(2):
            mine = counts[(task == TASKS) & (plan._buckets == bucket)]
            assert mine.max() - mine.min() <= 1


def test_filler_rows_are_marked_and_padding_is_counted():
    plan = make_plan()
    assert plan.fingerprint() != make_plan(rates=(0.4, 0.4, 0.2)).fingerprint()
    rows = np.concatenate([plan[step][1] for step in range(len(plan))])
    assert ((rows[:, 0] < 0) == (rows[:, 1] < 0)).all() and (rows[:, 0] < 0).any()
    slots = sum(len(plan[s][1]) * sum(SHAPES[plan[s][0]]) for s in range(len(plan)))
    tokens = plan.lengths[epoch_of(plan, 0)].sum()
    assert plan.padding_share() == pytest.approx(1 - tokens / slots, abs=0.03)


# Several pairs a row.

MANY, SHAPE = [200, 100, 60], (20, 9)
OWNERS = np.repeat([0, 1, 2], MANY)
# The tasks differ in length, as translations, questions and headings do.
LENGTHS = (
    np.random.default_rng(1).integers(1, 5, (360, 2)) + np.array([[0, 2], [9, 0], [4, 4]])[OWNERS]
)


def make_packed_plan(rates=(0.5, 0.3, 0.2)):
    return PackedPairsPlan(LENGTHS, OWNERS, np.array(rates), [SHAPE], 4 * sum(SHAPE), 2)


def test_pack_pairs_places_each_example_once_where_there_is_room():
    order = np.random.default_rng(2).permutation(360)
    batches = pack_pairs(LENGTHS, order.tolist(), SHAPE, 4)
    placed = np.concatenate([ids[ids >= 0] for ids in batches])
    assert sorted(placed.tolist()) == list(range(360))
    sums = [
        np.where(row[:, None] >= 0, LENGTHS[row], 0).sum(axis=0) for ids in batches for row in ids
    ]
    assert (np.array(sums) <= SHAPE).all()
    # Few places stay empty in the field that fills the rows: first come, first placed.
    assert np.max(np.array(sums) / SHAPE, axis=1)[:-4].mean() > 0.85
    # In the order drawn, but for those that waited for room.
    late = np.abs(np.argsort(placed) - np.argsort(order))
    assert np.median(late) < 10
    with pytest.raises(LabError, match="example 1 of 21x3 tokens does not fit in a row of 20x9"):
        pack_pairs(np.array([[20, 9], [21, 3]]), [0, 1], SHAPE, 2)


def test_a_batch_mixes_the_tasks_at_their_rates_where_buckets_hold_one():
    plan = make_packed_plan()
    ids = [plan[step][1][..., 0] for step in range(len(plan))]
    counts = np.array([np.bincount(OWNERS[i[i >= 0]], minlength=3) for i in ids])
    np.testing.assert_array_equal(counts.sum(axis=0), [180, 108, 72])
    assert (counts > 0).mean() > 0.9  # of some seven examples a batch
    shapes = [(5, 9), (20, 9)]
    apart = MixedPlan(LENGTHS, OWNERS, np.array([0.5, 0.3, 0.2]), shapes, 4 * sum(SHAPE))
    mine = [OWNERS[ids[ids[:, 0] >= 0, 0]] for _, ids in apart]
    assert max(np.mean(tasks == 0) for tasks in mine) == 1


def test_epochs_have_one_number_of_batches_and_draw_anew():
    plan = make_packed_plan()
    epochs = []
    for epoch in range(4):
        steps = range(epoch * len(plan), (epoch + 1) * len(plan))
        ids = np.concatenate([plan[step][1][..., 0].ravel() for step in steps])
        epochs.append(np.bincount(ids[ids >= 0], minlength=360))
    counts = np.array([[e[task == OWNERS].sum() for task in range(3)] for e in epochs])
    np.testing.assert_array_equal(counts[0], [180, 108, 72])
    assert (np.abs(counts - counts[0]).sum(axis=1) < 36).all()  # a few batches of seven
    # Of the first task's 200 examples an epoch draws 180: the rest comes in the next one.
    assert (epochs[0] + epochs[1])[OWNERS == 0].min() >= 1


def test_padding_is_what_the_rows_leave_empty():
    plan = make_packed_plan(rates=np.array(MANY) / 360)
    ids = [plan[step][1][..., 0] for step in range(len(plan))]
    filled = sum(LENGTHS[i[i >= 0]].sum() for i in ids)
    slots = len(plan) * plan.rows(0) * sum(SHAPE)
    assert plan.padding_share() == pytest.approx(1 - filled / slots)
    line = (
        f"20x9: 4 rows, {len(plan)} batches, 360 examples an epoch, {360 / len(plan):.1f} a batch"
    )
    assert plan.describe() == [line]


def test_join_rows_puts_examples_one_after_the_other():
    fields = {
        "source": Ragged.from_lists([[5, 6, 7], [8], [9, 10]]),
        "target": Ragged.from_lists([[1], [2, 3], [4]]),
    }
    apart = fill(fields, np.array([2, 0, 1]), (3, 2), 0)
    batch = join_rows(apart, list(fields), np.array([2, 0, 1]), (6, 4), 0)
    np.testing.assert_array_equal(
        batch["source"], [[9, 10, 5, 6, 7, 0], [0] * 6, [8, 0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        batch["source_segments"], [[1, 1, 2, 2, 2, 0], [0] * 6, [1, 0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(batch["target"], [[4, 1, 0, 0], [0] * 4, [2, 3, 0, 0]])
    np.testing.assert_array_equal(batch["target_segments"], [[1, 2, 0, 0], [0] * 4, [1, 1, 0, 0]])
    np.testing.assert_array_equal(batch["target_mask"], batch["target_segments"] > 0)
