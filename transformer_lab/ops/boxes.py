"""Boxes: formats, overlaps, matching of predictions to objects, and removal of duplicates.

A box as shares of an image is (column, row) of its centre, width, height; as corners it is left,
top, right, bottom.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int


def corners(boxes: Float[Array, "*n 4"]) -> Float[Array, "*n 4"]:
    """Centre and size -> corners: (0.5, 0.5, 0.2, 0.4) is (0.4, 0.3, 0.6, 0.7)."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return jnp.concatenate([centre - half, centre + half], axis=-1)


def overlaps(
    a: Float[Array, "*#n 4"], b: Float[Array, "*#n 4"]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The intersection over union of corners, and the generalised one (Rezatofighi 2019, alg. 1).

    The latter is IoU - (hull - union) / hull, where the hull is the smallest box around both: 1 for
    equal boxes, towards -1 for boxes far apart. Boxes without area give 0 and no NaN. Two squares
    of side 2, one shifted by 1 along both axes: 1/7 and 1/7 - 2/9.
    """
    area = lambda x: ((x[..., 2] - x[..., 0]) * (x[..., 3] - x[..., 1])).clip(0)  # noqa: E731
    low, high = jnp.minimum(a[..., :2], b[..., :2]), jnp.maximum(a[..., 2:], b[..., 2:])
    hull = (high - low).clip(0).prod(axis=-1)
    inside = jnp.minimum(a[..., 2:], b[..., 2:]) - jnp.maximum(a[..., :2], b[..., :2])
    common = inside.clip(0).prod(axis=-1)
    union = area(a) + area(b) - common
    share = lambda part, whole: part / jnp.where(whole > 0, whole, 1.0)  # noqa: E731
    iou = share(common, union)
    return iou, iou - share(hull - union, hull)


def hungarian(cost: Float[Array, "q n"], real: Bool[Array, "n"] | None = None) -> Int[Array, "n"]:
    """The query of each object, all different, with the least sum of costs (Carion 2020, eq. 1).

    There are at least as many queries as objects. Objects that are not `real` fill the array up:
    they cost nothing, so that they change no other's query, and theirs mean nothing.
    """
    if not cost.shape[1]:
        return jnp.zeros((0,), jnp.int32)
    if real is not None:
        cost = jnp.where(real, cost, 0.0)
    queries, objects = optax.assignment.hungarian_algorithm(cost)
    return jnp.zeros(cost.shape[1], jnp.int32).at[objects].set(queries.astype(jnp.int32))


def matching_cost(
    logits: Float[Array, "q c"],
    boxes: Float[Array, "q 4"],
    label: Int[Array, "n"],
    wanted: Float[Array, "n 4"],
    weights: tuple[float, float, float],
) -> Float[Array, "q n"]:
    """What it costs to say that a query found an object: minus the probability of its class, L1
    distance and minus generalised IoU of the boxes, each weighted (Carion 2020, section 3.1)."""
    chances = jax.nn.softmax(logits, axis=-1)[:, jnp.clip(label, 0)]
    distance = jnp.abs(boxes[:, None] - wanted[None]).sum(axis=-1)
    _, generalised = overlaps(corners(boxes)[:, None], corners(wanted)[None])
    of_class, of_distance, of_overlap = weights
    return -of_class * chances + of_distance * distance - of_overlap * generalised


def cell_of(boxes: Float[Array, "n 4"], grid: tuple[int, int]) -> Int[Array, "n"]:
    """The number of the grid's cell, row by row, in which the centre of each box lies."""
    places = [
        jnp.clip((boxes[:, axis] * size).astype(jnp.int32), 0, size - 1)
        for axis, size in ((1, grid[0]), (0, grid[1]))
    ]
    return places[0] * grid[1] + places[1]


def without_duplicates(
    boxes: Float[np.ndarray, "n 4"],
    scores: Float[np.ndarray, "n"],
    labels: Int[np.ndarray, "n"],
    most: float,
) -> Int[np.ndarray, "kept"]:
    """The numbers of the boxes (corners) left, best first, when each one removes worse ones of its
    class that overlap it by an IoU of more than `most`: non-maximum suppression."""
    kept: list[int] = []
    order = np.argsort(-scores, kind="stable")
    shared = (
        np.asarray(overlaps(jnp.asarray(boxes)[:, None], jnp.asarray(boxes)[None])[0])
        if len(boxes)
        else np.zeros((0, 0))
    )
    for i in order.tolist():
        if all(labels[i] != labels[j] or shared[i, j] <= most for j in kept):
            kept.append(i)
    return np.array(kept, np.int64)
