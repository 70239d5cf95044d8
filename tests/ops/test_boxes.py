"""Boxes: overlaps by hand and by counting pixels, matching by search, duplicates by hand."""

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from transformer_lab.ops.boxes import (
    cell_of,
    corners,
    hungarian,
    matching_cost,
    overlaps,
    without_duplicates,
)

# One program for each shape, not one for each operation: compilation is most of the time here.
overlaps, corners, hungarian = map(jax.jit, (overlaps, corners, hungarian))

SQUARES = np.array([[0, 0, 2, 2], [1, 1, 3, 3], [5, 5, 6, 6], [0, 0, 2, 2], [1, 1, 1, 1]], float)


def test_overlaps_by_hand():
    iou, generalised = overlaps(jnp.asarray(SQUARES[:1]), jnp.asarray(SQUARES))
    np.testing.assert_allclose(iou, [1, 1 / 7, 0, 1, 0], atol=1e-6)
    wanted = [1, 1 / 7 - 2 / 9, -(36 - 5) / 36, 1, 0]  # a point inside fills the hull
    np.testing.assert_allclose(generalised, wanted, atol=1e-6)
    nothing = jnp.zeros((1, 4))
    found = jax.grad(lambda a: sum(x.sum() for x in overlaps(a, nothing)))(nothing)
    assert jnp.isfinite(found).all()


def test_overlaps_are_those_of_counted_pixels():
    rng = np.random.default_rng(0)
    start = rng.integers(0, 12, (2, 20, 2))
    a, b = np.concatenate([start, start + rng.integers(1, 9, (2, 20, 2))], axis=-1)
    rows, columns = np.mgrid[:24, :24]
    inside = lambda x: (columns >= x[0]) & (columns < x[2]) & (rows >= x[1]) & (rows < x[3])  # noqa: E731
    found = overlaps(jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32))
    for iou, generalised, one, other in zip(*found, a, b, strict=True):
        both, any_of = inside(one) & inside(other), inside(one) | inside(other)
        hull = inside([*np.minimum(one, other)[:2], *np.maximum(one, other)[2:]]).sum()
        share = both.sum() / any_of.sum()
        np.testing.assert_allclose(iou, share, atol=1e-6)
        np.testing.assert_allclose(generalised, share - (hull - any_of.sum()) / hull, atol=1e-6)


def test_corners_are_half_a_side_from_the_centre():
    found = corners(jnp.array([[0.5, 0.5, 0.2, 0.4]]))
    np.testing.assert_allclose(found, [[0.4, 0.3, 0.6, 0.7]], atol=1e-6)


def test_a_matching_costs_what_scipys_does_and_what_a_search_finds():
    rng = np.random.default_rng(1)
    match = jax.jit(jax.vmap(hungarian))
    for queries, objects in ((5, 5), (12, 4), (6, 1), (30, 9)):
        costs = rng.normal(size=(16, queries, objects)).astype(np.float32)
        costs[0] = 1.0  # all alike
        for cost, found in zip(costs, np.asarray(match(costs)), strict=True):
            assert len(set(found.tolist())) == objects
            best = cost[linear_sum_assignment(cost)].sum()
            np.testing.assert_allclose(cost[found, np.arange(objects)].sum(), best, atol=1e-5)
            if queries == 5:
                every = (cost[list(p), range(5)].sum() for p in permutations(range(5)))
                np.testing.assert_allclose(best, min(every), atol=1e-5)


def test_objects_that_fill_up_change_no_matching_and_there_may_be_none():
    rng = np.random.default_rng(2)
    cost = rng.normal(size=(7, 5)).astype(np.float32)
    real = np.array([True, True, True, False, False])
    found = hungarian(jnp.asarray(cost), jnp.asarray(real))
    alone = hungarian(jnp.asarray(cost[:, :3]))
    np.testing.assert_array_equal(found[:3], alone)
    assert len(set(found.tolist())) == 5
    assert hungarian(jnp.zeros((7, 0))).shape == (0,)
    nobody = hungarian(jnp.asarray(cost), jnp.zeros(5, bool))
    assert len(set(nobody.tolist())) == 5


def test_the_cost_of_a_match_is_that_of_the_formula():
    logits = jnp.log(jnp.array([[0.5, 0.25, 0.25]]))
    boxes, wanted = jnp.array([[0.5, 0.5, 0.2, 0.2]]), jnp.array([[0.6, 0.6, 0.2, 0.2]])
    found = matching_cost(logits, boxes, jnp.array([1]), wanted, (1.0, 5.0, 2.0))
    generalised = 1 / 7 - (9 - 7) / 9
    np.testing.assert_allclose(found, [[-0.25 + 5 * 0.2 - 2 * generalised]], atol=1e-5)


def test_a_cell_holds_the_centre_of_its_object():
    boxes = jnp.array([[0.1, 0.1, 0, 0], [0.9, 0.1, 0, 0], [0.4, 0.99, 0, 0], [1.0, 1.0, 0, 0]])
    np.testing.assert_array_equal(cell_of(boxes, (2, 4)), [0, 3, 5, 7])


def test_of_duplicates_the_best_stays():
    boxes = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10], [20, 20, 30, 30]], float)
    scores, labels = np.array([0.5, 0.9, 0.8, 0.1]), np.array([0, 0, 1, 0])
    np.testing.assert_array_equal(without_duplicates(boxes, scores, labels, 0.5), [1, 2, 3])
    np.testing.assert_array_equal(without_duplicates(boxes, scores, labels, 0.9), [1, 2, 0, 3])
    assert not len(without_duplicates(boxes[:0], scores[:0], labels[:0], 0.5))


@pytest.mark.parametrize("shape", [(3, 4), (2, 5, 4)])
def test_overlaps_of_a_box_with_itself_are_1(shape):
    boxes = jnp.asarray(np.random.default_rng(3).random(shape), jnp.float32) + 0.01
    iou, generalised = overlaps(corners(boxes), corners(boxes))
    np.testing.assert_allclose(iou, jnp.ones(shape[:-1]), atol=1e-5)
    np.testing.assert_allclose(generalised, iou, atol=1e-5)
