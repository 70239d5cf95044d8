"""Mixtures: shares of tasks, order, resumption."""

import numpy as np
import pytest

from transformer_lab.data.mixing import MixedPlan, mixing_rates
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
