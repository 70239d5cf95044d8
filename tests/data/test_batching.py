"""Batches of like lengths: their shapes, which examples share one, and in which order."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lab.data.batching import BatchConfig, BatchPlan, fits
from transformer_lab.data.buckets import choose_buckets
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


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 60), st.integers(0, 5), st.sampled_from([96, 100, 4096]),
    st.sampled_from([1, 2, 4]), st.booleans(),
)  # fmt: skip
def test_each_epoch_holds_each_example_once_for_any_batch_size(
    count, seed, tokens, multiple, shuffle
):
    lengths = np.random.default_rng(count).integers(1, 12, (count, 2))
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


def test_evaluation_keeps_the_order_and_every_epoch_is_alike():
    lengths = np.array([[2], [9], [3], [8], [1], [4], [2]])
    plan = BatchPlan(lengths, [(4,), (9,)], 12, shuffle=False, seed=5)
    batches = [(bucket, ids.tolist()) for bucket, ids in plan]
    assert batches == [(0, [0, 2, 4]), (0, [5, 6, -1]), (1, [1]), (1, [3])]
    assert [(b, ids.tolist()) for b, ids in (plan[4 + i] for i in range(4))] == batches
    bucket, ids = BatchPlan(np.array([[3], [2], [3]]), [(3,)], 24, 4, shuffle=False)[0]
    assert (bucket, ids.tolist()) == (0, [0, 1, 2, -1, -1, -1, -1, -1])  # a batch holds all


def test_buckets_take_turns_in_another_order_each_epoch():
    lengths = np.random.default_rng(0).integers(1, 20, (400, 2))
    plan = BatchPlan(lengths, [(8, 8), (16, 20), (20, 20)], 512, seed=0)
    turns = [[plan[epoch * len(plan) + i][0] for i in range(len(plan))] for epoch in (0, 1)]
    assert turns[0] != turns[1]
    assert sorted(turns[0]) == sorted(turns[1]) != turns[0]


def test_describe_lists_each_shape_once_and_fits_counts_every_field():
    lengths = np.array([[4, 4], [5, 4], [4, 5], [1, 1]])
    assert fits(lengths, 4).tolist() == [True, False, False, True]
    lengths = np.array([[2, 3]] * 5 + [[6, 4]])
    plan = BatchPlan(lengths, [(2, 3), (4, 4), (6, 4)], 10)
    assert plan.describe() == [
        "2x3: 2 rows, 3 batches, 5 examples an epoch",
        "4x4: 1 row, 0 batches, 0 examples an epoch",
        "6x4: 1 row, 1 batch, 1 example an epoch",
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
    with pytest.raises(LabError, match=message):
        BatchPlan(**dict(lengths=np.array([[3]]), shapes=[(4,)], tokens_per_batch=8) | change)


@pytest.mark.parametrize("name", ["tokens_per_batch", "buckets", "max_length"])
@pytest.mark.parametrize("value", [0, -1, True])
def test_batch_settings_are_whole_positive_numbers(name, value):
    with pytest.raises(LabError, match=f"^{name} must be a whole number from 1"):
        BatchConfig(**{name: value})


# Shapes.


def fewest_slots(lengths, count, tokens_per_batch, multiple):
    """Brute force over every chain of nested shapes."""
    longest = tuple(lengths.max(axis=0))
    grid = [s for s in product(*(sorted(set(c)) for c in lengths.T.tolist())) if s != longest]
    # product() sorts, so a nested chain is always an ordered combination.
    chains = (c + (longest,) for used in range(count) for c in combinations(grid, used))
    nested = (c for c in chains if all(holds(b, a) for a, b in zip(c, c[1:], strict=False)))
    return min(slots_of(lengths.tolist(), c, tokens_per_batch, multiple) for c in nested)


def short_strings(count=11_000, correlation=0.95, longest=64):
    """Lengths like those of software messages and their translations."""
    rng = np.random.default_rng(0)
    one, other = rng.standard_normal((2, count))
    both = [one, correlation * one + np.sqrt(1 - correlation**2) * other]
    lengths = np.exp(0.69 * np.stack(both, axis=1) + [2.0, 2.2]).round().astype(np.int64)
    return np.clip(lengths, 2, longest)


@pytest.mark.parametrize("fields, high, count", [(1, 9, 1), (1, 9, 4), (2, 5, 3), (3, 3, 3)])
@pytest.mark.parametrize("multiple", [1, 2])
def test_buckets_are_the_optimum_of_brute_force(fields, high, count, multiple):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, high + 1, (40, fields))
        shapes = choose_buckets(lengths, count, 40, multiple)
        assert len(shapes) <= count
        found = slots_of(lengths.tolist(), shapes, 40, multiple)
        assert found == fewest_slots(lengths, count, 40, multiple)


def test_among_more_lengths_than_the_coarse_grid_holds_the_best_pair_is_found():
    rng = np.random.default_rng(3)
    one = rng.integers(1, 250, 20_000)
    lengths = np.stack([one, np.clip(one + rng.integers(-50, 50, 20_000), 1, 250)], axis=1)
    shapes = choose_buckets(lengths, 2, 4096)
    longest = lengths.max(axis=0)
    table = np.zeros(longest + 1)
    np.add.at(table, tuple(lengths.T), 1)
    held = table.cumsum(axis=0).cumsum(axis=1)[1:, 1:]
    size = np.add.outer(*(np.arange(1, most + 1) for most in longest))
    first = np.ceil(held / (4096 // size)) * (4096 // size) * size
    last_rows, last_size = 4096 // longest.sum(), longest.sum()
    best = (first + np.ceil((20_000 - held) / last_rows) * last_rows * last_size).min()
    assert best <= slots_of(lengths.tolist(), shapes, 4096, 1) <= 1.0003 * best


def test_short_strings_waste_less_than_thirty_percent_in_six_buckets():
    lengths = short_strings()
    shares = {}
    for name, shapes in {
        "chosen": choose_buckets(lengths, 6, 4096, 8),
        "square": [(8, 8), (16, 16), (24, 24), (32, 32), (48, 48), (64, 64)],
    }.items():
        shares[name] = BatchPlan(lengths, shapes, 4096, 8).padding_share()
    assert shares["chosen"] < 0.30 < shares["square"]


def test_shapes_are_few_and_depend_on_the_lengths_alone():
    assert choose_buckets(np.full((50, 2), 7), 6, 1024) == [(7, 7)]  # no more than save a slot
    assert choose_buckets(np.array([[3, 3], [9, 9]]), 6, 1024) == [(9, 9)]  # 2 examples, 1 batch
    lengths = short_strings(500)
    assert choose_buckets(lengths, 4, 1024) == choose_buckets(lengths[::-1].copy(), 4, 1024)


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 6))
def test_buckets_are_nested_and_cover_the_longest(data, fields, count):
    row = st.lists(st.integers(0, 40), min_size=fields, max_size=fields)
    lengths = np.array(data.draw(st.lists(row, min_size=1, max_size=30)))
    shapes = choose_buckets(lengths, count, 200)
    longest = np.maximum(lengths.max(axis=0), 1).tolist()
    assert 1 <= len(shapes) <= count
    assert list(shapes[-1]) == longest
    assert all(a != b and holds(b, a) for a, b in zip(shapes, shapes[1:], strict=False))


def test_a_batch_too_small_for_its_longest_shape_names_all_that_matter():
    message = "tokens_per_batch=100 .* shape 20x30 needs 200, for a multiple of 4 row.*max_length"
    with pytest.raises(LabError, match=message):
        choose_buckets(np.array([[20, 5], [4, 30]]), 2, 100, 4)
    with pytest.raises(LabError, match=message):
        BatchPlan(np.array([[20, 30]]), [(20, 30)], 100, 4)
