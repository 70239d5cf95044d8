"""Chooses batch shapes from the lengths in the data, so that padding is least."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from jaxtyping import Int

from transformer_lab.errors import LabError

Shape = tuple[int, ...]  # the padded length of each field

# The most candidate shapes of a search, whose time and memory grow with their square.
_CANDIDATES = 900


def shape_name(shape: Sequence[int]) -> str:
    """A shape as it is written in messages and reports, such as "24x32"."""
    return "x".join(str(int(length)) for length in shape)


def rows_per_batch(shape: Sequence[int], tokens_per_batch: int, multiple: int) -> int:
    """The rows of a batch of `tokens_per_batch` positions, rounded down to `multiple`.

    `multiple` is data x fsdp x micro-batches. Raises: LabError if not even `multiple` rows fit."""
    slots = int(sum(shape))
    rows = int(tokens_per_batch // slots // multiple * multiple)
    if rows == 0:
        raise LabError(
            f"tokens_per_batch={tokens_per_batch} is too small: a batch of shape"
            f" {shape_name(shape)} needs {multiple * slots}, for a multiple of {multiple} row(s)"
            " (data x fsdp x micro-batches); raise tokens_per_batch or lower max_length"
        )
    return rows


def choose_buckets(
    lengths: Int[np.ndarray, "n fields"],
    count: int,
    tokens_per_batch: int,
    multiple: int = 1,
    counts: Int[np.ndarray, "n"] | None = None,
) -> list[Shape]:
    """At most `count` nested shapes that need the fewest token positions, padding rows included.

    Each shape is at least the one before in every field; the last holds the longest of each field.
    Fewer shapes are returned where more would save nothing. With `counts`, each row of lengths
    stands for that many examples. Raises: LabError as `rows_per_batch` does.

    Fields are only loosely correlated, so the shapes are a path through the grid of lengths rather
    than cuts of one sorted key: the best path on a coarse grid is refined on ever finer grids
    around it. It is optimal if the coarse grid holds all lengths of the data."""
    if len(lengths) == 0 or count < 1:
        raise LabError(f"buckets={count} for {len(lengths)} examples: both must be at least 1")
    lengths = np.maximum(lengths, 1)
    longest = np.max(lengths, axis=0)
    rows_per_batch(longest.tolist(), tokens_per_batch, multiple)
    lengths, weights = _distinct(lengths, counts)

    def search(points: np.ndarray) -> tuple[float, list[Shape]]:
        rows = tokens_per_batch // points.sum(axis=1) // multiple * multiple
        return _best_path(points, rows, _held(points, lengths, weights), count)

    per_field = max(2, int(_CANDIDATES ** (1 / lengths.shape[1])))
    grids = [_spread(column, weights, per_field) for column in lengths.T]
    slots, shapes = search(np.array(list(product(*grids))))
    levels = [np.unique(column) for column in lengths.T]
    for step in (8, 4, 2, 1):
        while (found := search(_around(shapes, levels, step)))[0] < slots:
            slots, shapes = found
    return shapes


def _distinct(lengths: np.ndarray, counts: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows of lengths, and how many examples have each."""
    sizes = tuple(lengths.max(axis=0) + 1)
    flat = np.ravel_multi_index(tuple(lengths.T), sizes)
    keys, place, once = np.unique(flat, return_inverse=True, return_counts=True)
    found = once if counts is None else np.bincount(place, counts).astype(np.int64)
    return np.stack(np.unravel_index(keys, sizes), axis=1), found


def _spread(column: np.ndarray, weights: np.ndarray, most: int) -> np.ndarray:
    """At most `most` lengths of a field up to the longest, with equally many tokens between."""
    levels, place = np.unique(column, return_inverse=True)
    if len(levels) <= most:
        return levels
    mass = np.cumsum(np.bincount(place, weights) * levels)
    chosen = np.searchsorted(mass, np.linspace(0, mass[-1], most + 1)[1:])
    return levels[np.unique(np.minimum(chosen, len(levels) - 1))]


def _around(shapes: list[Shape], levels: list[np.ndarray], step: int) -> np.ndarray:
    """The shapes and those at most two steps away from one of them in every field."""
    points = set(shapes)
    for shape in shapes:
        near = []
        for length, level in zip(shape, levels, strict=True):
            places = np.searchsorted(level, length) + step * np.arange(-2, 3)
            near.append(level[np.unique(np.clip(places, 0, len(level) - 1))].tolist())
        points.update(product(*near))
    return np.array(sorted(points))  # the longest shape is last


def _held(points: np.ndarray, lengths: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """How many examples each shape could hold: those no longer in any field."""
    grids = [np.unique(column) for column in points.T]
    cells = [np.searchsorted(*pair) for pair in zip(grids, lengths.T, strict=True)]
    sizes = tuple(len(grid) for grid in grids)
    flat = np.bincount(np.ravel_multi_index(cells, sizes), weights, np.prod(sizes))
    table = flat.reshape(sizes)
    for axis in range(table.ndim):
        table = table.cumsum(axis)
    places = [np.searchsorted(*pair) for pair in zip(grids, points.T, strict=True)]
    return table[tuple(places)]


def _best_path(
    points: np.ndarray, rows: np.ndarray, held: np.ndarray, count: int
) -> tuple[float, list[Shape]]:
    """The fewest token positions of at most `count` nested shapes that end in the last of `points`.

    The step from shape i to shape j costs the batches of shape j for the examples that j holds and
    i does not; dynamic programming over the number of shapes finds the cheapest path."""
    slots = rows * points.sum(axis=1)
    nested = (points[:, None] <= points[None]).all(axis=-1)
    step = np.where(nested, np.ceil((held - held[:, None]) / rows) * slots, np.inf)
    best, came_from = [np.ceil(held / rows) * slots], []
    for _ in range(count - 1):
        total = best[-1][:, None] + step
        came_from.append(total.argmin(axis=0))
        best.append(total.min(axis=0))
    used = int(np.argmin([costs[-1] for costs in best]))  # the first: as few shapes as possible
    path = [len(points) - 1]
    for back in reversed(came_from[:used]):
        path.append(int(back[path[-1]]))
    return float(best[used][-1]), [tuple(points[i].tolist()) for i in reversed(path)]
