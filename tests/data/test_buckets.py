from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lab.data.batching import BatchPlan
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


def test_an_empty_field_is_aligned_as_well():
    lengths = np.array([[3, 15, 30], [33, 33, 22], [37, 11, 0]])
    # 2 x (37 + 12 + 24) slots of the first are fewer than 3 x (37 + 12 + 3)
    assert choose_buckets(lengths, 6, 200, 1, 3) == [(37, 12, 24), (37, 33, 30)]


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 6), st.sampled_from([1, 3, 8]))
def test_buckets_are_nested_aligned_and_cover_the_longest(data, fields, count, align):
    row = st.lists(st.integers(0, 40), min_size=fields, max_size=fields)
    lengths = np.array(data.draw(st.lists(row, min_size=1, max_size=30)))
    shapes = choose_buckets(lengths, count, 200, 1, align)
    longest = np.maximum(lengths.max(axis=0), 1).tolist()
    assert 1 <= len(shapes) <= count
    assert list(shapes[-1]) == longest
    assert all(a != b and holds(b, a) for a, b in zip(shapes, shapes[1:], strict=False))
    for length, most in zip(chain(*shapes), longest * len(shapes), strict=True):
        assert length % align == 0 or length == most


def test_buckets_depend_on_the_lengths_alone_not_on_their_order():
    lengths = short_strings(500)
    assert choose_buckets(lengths, 4, 1024) == choose_buckets(lengths[::-1].copy(), 4, 1024)


def test_no_more_buckets_than_save_a_slot():
    assert choose_buckets(np.full((50, 2), 7), 6, 1024) == [(7, 7)]
    assert choose_buckets(np.array([[3, 3], [9, 9]]), 6, 1024) == [(9, 9)]  # 2 examples, 1 batch


def test_a_batch_too_small_for_its_longest_shape_names_all_that_matter():
    message = "tokens_per_batch=100 .* shape 20x30 needs 200, for a multiple of 4 row.*max_length"
    with pytest.raises(LabError, match=message):
        choose_buckets(np.array([[20, 5], [4, 30]]), 2, 100, 4)
    with pytest.raises(LabError, match=message):
        BatchPlan(np.array([[20, 30]]), [(20, 30)], 100, 4)
