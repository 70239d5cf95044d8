"""Exact search of the nearest vectors, by products of matrices, or by faiss where it is there."""

import importlib.util

import numpy as np
from jaxtyping import Float, Int

NUMBERS = 2**25  # similarities that are in memory at once


def nearest(
    queries: Float[np.ndarray, "q d"],
    keys: Float[np.ndarray, "n d"],
    count: int,
    squared: bool = False,
) -> tuple[Float[np.ndarray, "q k"], Int[np.ndarray, "q k"]]:
    """The `count` keys with the largest product with each query, best first, as (products,
    numbers); with `squared` those of the smallest squared Euclidean distance, as (distances,
    numbers). Fewer keys give fewer columns."""
    queries, keys = (np.ascontiguousarray(x, np.float32) for x in (queries, keys))
    count = min(count, len(keys))
    if importlib.util.find_spec("faiss"):
        import faiss

        metric = faiss.METRIC_L2 if squared else faiss.METRIC_INNER_PRODUCT
        return faiss.knn(queries, keys, count, metric)
    near = np.zeros((len(queries), count), np.float32)
    numbers = np.zeros((len(queries), count), np.int64)
    half = np.square(keys).sum(axis=1) / 2 if squared else 0.0
    rows = max(1, NUMBERS // max(len(keys), 1))
    for i in range(0, len(queries), rows):
        found = queries[i : i + rows] @ keys.T - half
        some = np.sort(np.argpartition(-found, count - 1, axis=1)[:, :count], axis=1)
        values = np.take_along_axis(found, some, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")  # of equals the first key
        near[i : i + rows] = np.take_along_axis(values, order, axis=1)
        numbers[i : i + rows] = np.take_along_axis(some, order, axis=1)
    if squared:
        near = np.maximum(np.square(queries).sum(axis=1)[:, None] - 2 * near, 0.0)
    return near, numbers
