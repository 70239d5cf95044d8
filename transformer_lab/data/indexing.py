"""The index of prepared shards (see `data.shards`), made a shard at a time."""

from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap


def write_index(folder: Path, files: list[Path], parts: list[int], kind: str) -> None:
    """`lengths.npy`, `order.npy` and `cells.npy`, and of documents `ends.npy`.

    `files` hold the lengths of each shard, uint32 [records, fields], `parts` the part that each
    shard belongs to. Records of one cell stay in their order.
    """
    shapes = [np.load(file, mmap_mode="r").shape for file in files]
    count = sum(shape[0] for shape in shapes)
    fields = next(shape[1] for shape in shapes if shape[0])
    lengths = open_memmap(folder / "lengths.npy", "w+", np.uint32, (count, fields))
    begins = np.cumsum([0, *(shape[0] for shape in shapes)])
    ranges = [slice(a, b) for a, b in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)]
    longest = np.zeros(fields, np.int64)
    for file, rows in zip(files, ranges, strict=True):
        lengths[rows] = found = np.load(file).reshape(-1, fields)
        longest = np.maximum(longest, found.max(axis=0, initial=0))
    sizes = (max(parts) + 1, *(longest + 1).tolist())

    def keys(shard: int) -> np.ndarray:
        columns = lengths[ranges[shard]].astype(np.int64).T
        return np.ravel_multi_index((np.full(columns.shape[1], parts[shard]), *columns), sizes)

    cells, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for shard in range(len(files)):
        both = np.concatenate([cells, keys(shard)])
        weights = np.concatenate([counts, np.ones(len(both) - len(cells), np.int64)])
        cells, place = np.unique(both, return_inverse=True)
        counts = np.bincount(place, weights, len(cells)).astype(np.int64)
    part, *columns = np.unravel_index(cells, sizes)
    np.save(folder / "cells.npy", np.stack([part, counts, *columns], axis=1).astype(np.int64))
    _write_order(folder / "order.npy", count, keys, begins, cells, np.cumsum(counts) - counts)
    lengths.flush()
    if kind == "documents":
        ends = open_memmap(folder / "ends.npy", "w+", np.int64, (count + 1,))
        for rows in ranges:
            ends[rows.start + 1 : rows.stop + 1] = ends[rows.start] + np.cumsum(
                lengths[rows, 0].astype(np.int64) + 1
            )
        ends.flush()


def _write_order(path, count, keys, begins, cells, free) -> None:
    """Places each record behind those of its cell that came before: a counting sort on disk.

    `free` is where each cell's next record goes.
    """
    dtype = np.uint32 if count < 2**32 else np.int64
    order = open_memmap(path, "w+", dtype, (count,))
    for shard, begin in enumerate(begins[:-1].tolist()):
        found = np.searchsorted(cells, keys(shard))
        local = np.argsort(found, kind="stable")
        cell, first, many = np.unique(found[local], return_index=True, return_counts=True)
        within = np.arange(len(local)) - np.repeat(first, many)
        order[np.repeat(free[cell], many) + within] = begin + local
        free[cell] += many
    order.flush()
