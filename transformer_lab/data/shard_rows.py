"""Loads training rows of documents, in memory or in shards, and of other records in shards.

A loader of shards may be told which rows are `needed`, bool [rows] or None for all. So each of
several processes reads only its own rows; the masks, made from the index, are right in all."""

from collections.abc import Callable
from functools import partial

import numpy as np
from jaxtyping import Bool, Int64

from transformer_lab.data import packing
from transformer_lab.data.batching import BatchPlan
from transformer_lab.data.buckets import Shape
from transformer_lab.data.packing import Batch, batch_of, closed, lay
from transformer_lab.data.ragged import Ragged, fill
from transformer_lab.data.shard_plans import PackedShardPlan, StreamShardPlan
from transformer_lab.data.shards import Shards

Needed = Bool[np.ndarray, "rows"] | None


def training_rows(
    documents: Ragged | Shards,
    layout: str,
    length: int,
    rows: int,
    seed: int,
    prefix: bool,
    start: int,
    eos: int,
) -> tuple[BatchPlan, Callable[..., Batch]]:
    """The order of the documents' rows in a `layout`, and the function that loads a batch."""
    how = length, rows, seed, prefix
    begin = None if start == eos else start  # else the end token before serves as start
    if isinstance(documents, Shards):
        found = {"shards": documents, "eos": eos}
        if layout == "packed":
            return PackedShardPlan(documents, *how), partial(load_packed, **found, bos=start)
        plan = StreamShardPlan(documents, *how, start=begin)
        return plan, partial(load_stream, **found, start=begin, ends=plan.ends)
    if layout == "packed":
        packed = packing.pack(documents, length, start, eos)
        plan = packing.packed_plan(packed, rows, seed, prefix)
        return plan, partial(packing.load_packed, packed=packed)
    stream = packing.as_stream(documents, eos, seed, begin)
    plan = packing.StreamPlan(len(stream), *how)
    return plan, partial(packing.load_stream, stream=stream)


def load_records(
    ids: Int64[np.ndarray, "rows"],
    shape: Shape,
    needed: Needed = None,
    *,
    shards: Shards,
    pad_id: int,
) -> Batch:
    """The rows of a `ShardPlan`: each field, padded to its length, with its mask."""
    real = (ids >= 0) if needed is None else (ids >= 0) & needed
    rows = np.where(real, np.cumsum(real) - 1, -1)
    batch = fill(shards.take(ids[real]), rows, shape, pad_id)
    if needed is not None:
        lengths = np.where(ids[:, None] >= 0, shards.lengths[np.maximum(ids, 0)], 0)
        for name, length, tokens in zip(shards.fields, shape, lengths.T, strict=True):
            batch[f"{name}_mask"] = np.arange(length) < tokens[:, None]
    return batch


def load_stream(
    ids: Int64[np.ndarray, "rows columns"],
    shape: Shape,
    needed: Needed = None,
    *,
    shards: Shards,
    eos: int,
    start: int | None = None,
    ends: np.ndarray | None = None,
) -> Batch:
    """The windows of a `StreamShardPlan`, as `data.packing.load_stream` makes them."""
    starts, (length,) = ids[:, 0], shape
    ends = shards.ends if ends is None else ends
    real = (starts >= 0) if needed is None else (starts >= 0) & needed
    first = np.searchsorted(ends, np.maximum(starts[real], 0), "right") - 1
    begin = starts[real] - ends[first].astype(np.int64)  # the window's start in its first document
    laps, rest = np.divmod(starts[real] + length, int(ends[-1]))
    last = np.searchsorted(ends, rest, "right") - 1 + laps * len(shards)
    counts = last - first + 1
    documents = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    (found,) = shards.take(documents % len(shards)).values()
    framed = closed(found, start, eos)
    stream, before = framed.values, framed.offsets[np.cumsum(counts) - counts]
    window = np.zeros((len(ids), length + 1), np.int32)
    window[real] = stream[(before + begin)[:, None] + np.arange(length + 1)]
    segments = np.repeat((starts[:, None] >= 0).astype(np.int32), length, axis=1)
    return batch_of(window[:, :-1], window[:, 1:], segments, ids[:, 1:])


def load_packed(
    ids: Int64[np.ndarray, "rows most columns"],
    shape: Shape,
    needed: Needed = None,
    *,
    shards: Shards,
    bos: int,
    eos: int,
) -> Batch:
    """The rows of a `PackedShardPlan`, as `data.packing.load_packed` makes them."""
    document, begin, real = ids[..., 0], ids[..., 1], ids[..., 0] >= 0
    whole = len(ids), shape[0]
    targets = shards.lengths[np.maximum(document, 0), 0].astype(np.int64) + 1 - begin
    sizes = np.where(real, np.minimum(targets, shape[0]), 0)
    row, rank = np.nonzero(real)
    positions = np.stack([row, (np.cumsum(sizes, axis=1) - sizes)[real], rank + 1])
    read = np.ones(len(row), bool) if needed is None else needed[row]
    (found,) = shards.take(document[real][read]).values()
    framed = closed(found, bos, eos)
    starts = framed.offsets[:-1] + begin[real][read]
    rows = lay(framed.values, starts, sizes[real][read], positions[:, read], whole)
    segments = rows.segments
    if needed is not None:
        blank = np.zeros(int(sizes.max(initial=0)) + 1, np.int32)
        none = np.zeros(len(row), np.int64)
        segments = lay(blank, none, sizes[real], positions, whole).segments
    draws = ids[:, 0, 2:]
    return {**batch_of(rows.tokens, rows.targets, segments, draws), "segments": segments}
