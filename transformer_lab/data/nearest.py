"""Exact search of the nearest vectors, in blocks, or by faiss where it is installed."""

import importlib.util

import numpy as np
from jaxtyping import Float, Int

BLOCK = 65_536  # vectors that are compared with at once
QUERIES = 256  # queries that are compared at once


def nearest(
    queries: Float[np.ndarray, "q d"],
    keys: Float[np.ndarray, "n d"],
    count: int,
    squared: bool = False,
    by_faiss: bool | None = None,
) -> tuple[Float[np.ndarray, "q k"], Int[np.ndarray, "q k"]]:
    """The `count` keys with the largest product with each query, best first, as (products,
    numbers); with `squared` those of the smallest squared Euclidean distance, as (distances,
    numbers). Fewer keys give fewer columns. `by_faiss` None: where the package is installed."""
    count, keys = min(count, len(keys)), np.asarray(keys)
    if by_faiss is None:
        by_faiss = importlib.util.find_spec("faiss") is not None
    if by_faiss:
        import faiss

        metric = faiss.METRIC_L2 if squared else faiss.METRIC_INNER_PRODUCT
        found = faiss.knn(
            *(np.ascontiguousarray(x, np.float32) for x in (queries, keys)), count, metric
        )
        return found[0], found[1]
    parts = [_of_some(queries[i : i + QUERIES], keys, count, squared)
             for i in range(0, len(queries), QUERIES)]  # fmt: skip
    empty = np.zeros((0, count))
    near, numbers = (
        (np.concatenate([empty, *part]) for part in zip(*parts, strict=True))
        if parts
        else (empty, empty)
    )
    return near.astype(np.float32), numbers.astype(np.int64)


def _of_some(queries, keys, count, squared):
    """The same for a few queries: the best of each block of keys, then the best of these."""
    near = np.zeros((len(queries), 0), np.float32)
    numbers = np.zeros((len(queries), 0), np.int64)
    queries = queries.astype(np.float32)
    for first in range(0, len(keys), BLOCK):
        block = keys[first : first + BLOCK].astype(np.float32)
        found = queries @ block.T
        if squared:  # minus the distance, without the query's own square
            found = 2 * found - np.square(block).sum(axis=1)
        some = min(count, len(block))
        best = np.argpartition(-found, some - 1, axis=1)[:, :some]
        near = np.concatenate([near, np.take_along_axis(found, best, axis=1)], axis=1)
        numbers = np.concatenate([numbers, best + first], axis=1)
    order = np.lexsort((numbers, -near), axis=1)[:, :count]  # of equals the first key
    near, numbers = (np.take_along_axis(x, order, axis=1) for x in (near, numbers))
    if squared:
        near = np.maximum(np.square(queries).sum(axis=1)[:, None] - near, 0.0)
    return near, numbers
