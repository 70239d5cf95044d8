import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lab.data.batching import BatchConfig, BatchPlan, fits
from transformer_lab.errors import LabError


def holds(shape, row):
    return all(length <= most for length, most in zip(row, shape, strict=True))


def slots_of(lengths, shapes, tokens_per_batch, multiple):
    """Slots of an epoch, counted example by example."""
    counts = [0] * len(shapes)
    for row in lengths:
        counts[next(i for i, shape in enumerate(shapes) if holds(shape, row))] += 1
    rows = [tokens_per_batch // sum(shape) // multiple * multiple for shape in shapes]
    return sum(
        -(-n // r) * r * sum(shape) for n, r, shape in zip(counts, rows, shapes, strict=True)
    )


def some_lengths(count):
    return np.random.default_rng(0).integers(1, 20, (count, 2))


plans = st.builds(
    lambda count, seed, tokens, multiple, shuffle: (
        np.random.default_rng(count).integers(1, 12, (count, 2)),
        tokens,
        multiple,
        seed,
        shuffle,
    ),
    st.integers(1, 60),
    st.integers(0, 5),
    st.sampled_from([96, 100, 4096]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(plans)
def test_each_epoch_holds_each_example_once_for_any_batch_size(case):
    lengths, tokens, multiple, seed, shuffle = case
    shapes = [(4, 5), (8, 8), (12, 12)]
    plan = BatchPlan(lengths, shapes, tokens, multiple, seed, shuffle)
    for epoch in range(2):
        steps = range(epoch * len(plan), (epoch + 1) * len(plan))
        batches = [plan[step] for step in steps]
        ids = np.concatenate([ids for _, ids in batches])
        assert sorted(ids[ids >= 0]) == list(range(len(lengths)))
        for bucket, ids in batches:
            assert len(ids) == plan.rows(bucket) > 0 == len(ids) % multiple
            assert len(ids) * sum(shapes[bucket]) <= tokens
            first = [next(i for i, s in enumerate(shapes) if holds(s, lengths[j])) for j in ids]
            assert {b for b, j in zip(first, ids, strict=True) if j >= 0} == {bucket}
            assert (np.diff(np.signbit(ids).astype(int)) >= 0).all()  # filler rows come last
    slots = slots_of(lengths.tolist(), shapes, tokens, multiple)
    assert plan.padding_share() == pytest.approx(1 - lengths.sum() / slots)


def test_epochs_and_seeds_have_their_own_order_and_buckets_take_turns():
    lengths, shapes = some_lengths(400), [(8, 8), (16, 20), (20, 20)]
    plan = BatchPlan(lengths, shapes, 512, seed=0)
    other = BatchPlan(lengths, shapes, 512, seed=1)
    per_epoch = len(plan)

    def epoch(plan, number):
        return [plan[number * per_epoch + place] for place in range(per_epoch)]

    orders = [epoch(plan, 0), epoch(plan, 1), epoch(other, 0)]
    examples = [np.concatenate([ids for _, ids in order]).tolist() for order in orders]
    assert examples[0] != examples[1] != examples[2] != examples[0]
    turns = [[bucket for bucket, _ in order] for order in orders]
    assert turns[0] != turns[1]
    assert sorted(turns[0]) == sorted(turns[1]) != turns[0]


def test_evaluation_keeps_the_order_and_every_epoch_is_alike():
    lengths = np.array([[2], [9], [3], [8], [1], [4], [2]])
    plan = BatchPlan(lengths, [(4,), (9,)], 12, shuffle=False, seed=5)
    batches = [(bucket, ids.tolist()) for bucket, ids in plan]
    assert batches == [(0, [0, 2, 4]), (0, [5, 6, -1]), (1, [1]), (1, [3])]
    assert [(b, ids.tolist()) for b, ids in (plan[4 + i] for i in range(4))] == batches


def test_a_batch_larger_than_the_split_holds_it_whole():
    bucket, ids = BatchPlan(np.array([[3], [2], [3]]), [(3,)], 24, 4, shuffle=False)[0]
    assert (bucket, ids.tolist()) == (0, [0, 1, 2, -1, -1, -1, -1, -1])


@pytest.mark.parametrize("tokens", [3, 6, 12, 30, 300])
def test_a_mean_over_ten_examples_is_the_same_for_any_batch_size(tokens):
    right = np.array([1] * 8 + [0] * 2)
    plan = BatchPlan(np.full((10, 1), 3), [(3,)], tokens, shuffle=False)
    kept = [ids[ids >= 0] for _, ids in plan]
    total, weight = sum(right[ids].sum() for ids in kept), sum(len(ids) for ids in kept)
    assert (total / weight, weight) == (0.8, 10)


def test_describe_lists_each_shape_once():
    lengths = np.array([[2, 3]] * 5 + [[6, 4]])
    plan = BatchPlan(lengths, [(2, 3), (4, 4), (6, 4)], 10)
    assert plan.describe() == [
        "2x3: 2 rows, 3 batches, 5 examples an epoch",
        "4x4: 1 rows, 0 batches, 0 examples an epoch",
        "6x4: 1 rows, 1 batches, 1 examples an epoch",
    ]


def test_the_fingerprint_changes_with_all_that_changes_the_order_and_nothing_else():
    lengths = np.array([[2], [4], [4]])
    base = dict(lengths=lengths, shapes=[(4,)], tokens_per_batch=9, multiple=1, seed=0)
    changes = [
        dict(lengths=np.array([[4], [2], [4]])),
        dict(lengths=np.array([[2], [4]])),
        dict(shapes=[(2,), (4,)]),
        dict(tokens_per_batch=12),
        dict(seed=1),
        dict(shuffle=False),
    ]
    prints = [BatchPlan(**base | change).fingerprint() for change in [{}, *changes]]
    assert len(set(prints)) == len(prints)
    same = [dict(multiple=2), dict(tokens_per_batch=8), dict(lengths=lengths.astype(np.int32))]
    assert {BatchPlan(**base | change).fingerprint() for change in same} == {prints[0]}


def test_fits_counts_every_field():
    lengths = np.array([[4, 4], [5, 4], [4, 5], [1, 1]])
    assert fits(lengths, 4).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(lengths=np.zeros((0, 1), int)), "no example to batch"),
        (dict(lengths=np.array([[3], [7]])), "example 1 of 7 tokens fits none of the 1 batch"),
        (dict(shapes=[(4, 4)]), r"batch shapes \[\(4, 4\)\] must give 1 lengths each"),
        (dict(seed=-1), "seed must not be negative, got -1"),
    ],
)
def test_bad_plans_are_refused_in_one_line(change, message):
    with pytest.raises(LabError, match=message) as error:
        BatchPlan(**dict(lengths=np.array([[3]]), shapes=[(4,)], tokens_per_batch=8) | change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["tokens_per_batch", "buckets", "max_length"])
@pytest.mark.parametrize("value", [0, -1, True])
def test_batch_settings_are_whole_positive_numbers(name, value):
    with pytest.raises(LabError, match=f"^{name} must be a whole number from 1"):
        BatchConfig(**{name: value})
