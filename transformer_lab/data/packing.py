"""Rows of a fixed length for language models: cut from a stream, packed, or sliding windows.

Where a row holds no token its ids are 0, and its mask is False."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Int32, Int64

from transformer_lab.data.batching import ROW_DRAWS, RowPlan
from transformer_lab.data.buckets import Shape
from transformer_lab.data.ragged import Ragged
from transformer_lab.errors import LabError

Batch = dict[str, np.ndarray]

_GOLDEN = (5**0.5 - 1) / 2


class StreamPlan(RowPlan):
    """Windows of `length` targets from a stream of `tokens` tokens; ids are the windows' starts.

    The stream is a ring: the last document's end token precedes the first document. Each epoch cuts
    it at another offset in [0, length), shuffles the windows, and leaves out the `tokens % length`
    targets before the offset; all others count once. Padding rows are -1."""

    def __init__(self, tokens: int, length: int, rows: int, seed: int = 0, prefix: bool = False):
        if 0 < tokens < length:
            raise LabError(f"{tokens} tokens do not fill a row of {length}: lower the length")
        self.tokens = tokens
        windows = np.full(tokens // max(1, length), length, np.int64)
        name, draws = f"stream of {tokens} {prefix}", ROW_DRAWS if prefix else None
        super().__init__(name, windows, length, rows, seed, draws)

    def _make(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        (length,) = self.shapes[0]
        offset = np.random.default_rng((self.seed, epoch, 1)).integers(length)
        batches = []
        for bucket, ids in super()._make(epoch):
            starts = np.where(ids < 0, -1, (ids * length + offset) % self.tokens)
            starts.flags.writeable = False
            batches.append((bucket, starts))
        return batches


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows of documents' pieces: inputs, next tokens, and 1, 2, ... a piece (0 = padding)."""

    tokens: Int32[np.ndarray, "rows length"]
    targets: Int32[np.ndarray, "rows length"]
    segments: Int32[np.ndarray, "rows length"]


def packed_plan(packed: Packed, rows: int, seed: int = 0, prefix: bool = False) -> RowPlan:
    """A plan over the rows of a packed set, shuffled in each epoch; the id -1 is a padding row.

    `padding_share()` counts the padding inside rows and the padding rows."""
    filled, draws = (packed.segments > 0).sum(axis=1), ROW_DRAWS if prefix else None
    return RowPlan(f"packed {prefix}", filled, packed.tokens.shape[1], rows, seed, draws)


def as_stream(
    documents: Ragged, eos: int, seed: int = 0, start: int | None = None
) -> Int32[np.ndarray, "tokens"]:
    """All documents in a seeded order, each between `start` (if not None) and `eos`."""
    mixed = documents.take(np.random.default_rng(seed).permutation(len(documents)))
    return closed(mixed, start, eos).values


def pack(documents: Ragged, length: int, bos: int, eos: int) -> Packed:
    """Documents as [bos] d1 ... dN [eos] in rows of `length`, several a row; see `pack_closed`."""
    return pack_closed(closed(documents, bos, eos), length)


def pack_closed(framed: Ragged, length: int) -> Packed:
    """Documents with the tokens at their ends in rows of `length` (best fit decreasing).

    A document's (input, target) pairs are cut into pieces of at most `length`: the first input of a
    later piece is the last target of the one before, so that each target counts once. Which row a
    piece is in follows from the documents' lengths alone."""
    if length < 1:
        raise LabError(f"length must be at least 1, got {length}")
    document, begin = _pieces(framed.lengths() - 1, length, length)
    starts = framed.offsets[document] + begin
    sizes = np.minimum(length, framed.offsets[document + 1] - 1 - starts)
    positions = _best_fit(sizes, length)
    return lay(
        framed.values, starts, sizes, positions, (int(positions[0].max(initial=-1)) + 1, length)
    )


def lay(
    values: np.ndarray, starts: np.ndarray, sizes: np.ndarray, positions: np.ndarray, shape: Shape
) -> Packed:
    """Rows of `shape` with pieces of closed documents: piece i is the `sizes[i]` values from
    `starts[i]` on, its targets the values that follow them; `positions` are the row, the first
    column and the segment of each piece."""
    row, column, segment = positions
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    source = np.repeat(starts, sizes) + within
    position = np.repeat(row * shape[1] + column, sizes) + within
    tokens, targets, segments = (np.zeros(shape, np.int32) for _ in range(3))
    tokens.flat[position] = values[source]
    targets.flat[position] = values[source + 1]
    segments.flat[position] = np.repeat(segment, sizes)
    return Packed(tokens, targets, segments)


def closed(documents: Ragged, bos: int | None, eos: int) -> Ragged:
    """Each document between its start token (none if bos is None) and its end token."""
    marks = [eos] if bos is None else [bos, eos]
    edges = documents.offsets[1:] if bos is None else np.repeat(documents.offsets, 2)[1:-1]
    values = np.insert(documents.values, edges, np.tile(marks, len(documents)))
    return Ragged(values, documents.offsets + len(marks) * np.arange(len(documents) + 1))


def _pieces(sizes: np.ndarray, length: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """(document, begin) of the windows that cover each document: 0, stride, ... to its end."""
    counts = 1 + -(-np.maximum(0, sizes - length) // stride)
    number = np.repeat(np.arange(len(sizes)), counts)
    rank = np.arange(len(number)) - np.repeat(np.cumsum(counts) - counts, counts)
    return number, rank * stride


def _best_fit(sizes: np.ndarray, length: int) -> np.ndarray:
    """(row, column, number in the row from 1) of each piece, the longest packed first.

    Each goes to the row with the least space that holds it. Rows are kept by their space, and the
    spaces available as bits of one integer, so that the cost of a piece is constant."""
    rows_with: list[list[int]] = [[] for _ in range(length + 1)]
    pieces_in: list[int] = []
    spaces = 0
    positions = np.zeros((3, len(sizes)), np.int64)
    for piece in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[piece])
        fitting = spaces >> size
        if fitting:
            space = size + (fitting & -fitting).bit_length() - 1
            row = rows_with[space].pop()
            if not rows_with[space]:
                spaces ^= 1 << space
        else:
            row, space = len(pieces_in), length
            pieces_in.append(0)
        pieces_in[row] += 1
        positions[:, piece] = row, length - space, pieces_in[row]
        if space > size:
            rows_with[space - size].append(row)
            spaces |= 1 << (space - size)
    return positions


def load_stream(
    ids: Int64[np.ndarray, "rows *draw"], shape: Shape, stream: Int32[np.ndarray, "tokens"]
) -> Batch:
    """The windows of a `StreamPlan`: tokens, targets and mask (True where the target counts).

    All are [rows, length], int32 or bool. With the ids of a plan with `prefix`, the batch also has
    `prefix`: True on the inputs that see each other, of whose targets only the last counts."""
    ids = ids.reshape(len(ids), -1)
    starts = ids[:, :1]
    positions = (np.maximum(starts, 0) + np.arange(shape[0] + 1)) % len(stream)
    window = np.where(starts >= 0, stream[positions], 0)
    segments = np.repeat((starts >= 0).astype(np.int32), shape[0], axis=1)
    return batch_of(window[:, :-1], window[:, 1:], segments, ids[:, 1:])


def load_packed(ids: Int64[np.ndarray, "rows *draw"], shape: Shape, packed: Packed) -> Batch:
    """The rows of a `packed_plan`, as `load_stream` with `segments`; each piece has its prefix."""
    ids = ids.reshape(len(ids), -1)
    rows, real = ids[:, 0], ids[:, :1] >= 0
    arrays = packed.tokens, packed.targets, packed.segments
    tokens, targets, segments = (np.where(real, array[rows], 0) for array in arrays)
    return {**batch_of(tokens, targets, segments, ids[:, 1:]), "segments": segments}


def batch_of(tokens, targets, segments, draws) -> Batch:
    """A batch of rows; `draws` are random numbers [rows, 1] with `prefix`, else empty [rows, 0]."""
    real = segments > 0
    batch = {"tokens": tokens, "targets": targets, "mask": real}
    if draws.shape[1]:
        position, length = _prefix(segments, draws)
        batch["prefix"] = real & (position < length)
        batch["mask"] = real & (position >= length - 1)
    return batch


def _prefix(segments: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each input's position in its segment, and the length of the segment's prefix.

    Of n inputs, the first 1 to n - 1 are the prefix, each length equally likely: a row's random
    number, moved by the golden ratio from segment to segment, is uniform for each."""
    positions = np.arange(segments.shape[1])
    change = segments[:, 1:] != segments[:, :-1]
    edge = np.ones((len(segments), 1), bool)
    begin = np.maximum.accumulate(np.where(np.hstack([edge, change]), positions, 0), axis=1)
    last = np.where(np.hstack([change, edge]), positions, len(positions))
    end = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    uniform = (draws / 2**32 + segments * _GOLDEN) % 1
    return positions - begin, 1 + (uniform * np.maximum(1, end - begin)).astype(np.int64)


def eval_windows(
    documents: Ragged,
    length: int,
    stride: int,
    rows: int,
    bos: int | None,
    eos: int,
    document_bytes: Sequence[int] | Int[np.ndarray, "documents"] | None = None,
) -> Iterator[Batch]:
    """Batches [rows, length] in which each target of [bos] d1 ... dN [eos] counts exactly once.

    A window starts `stride` after the one before and scores the targets that it did not reach, with
    at least `length - stride` tokens of context; none crosses a document. `bytes` (float32 [rows])
    is the document's `document_bytes` in the row of its first window, else 0, so that sums are the
    corpus's. Padding rows are all masked. If bos is None the documents stay as they are: N tokens
    have N - 1 targets."""
    if not 1 <= stride <= length:
        raise LabError(f"stride must be from 1 to the length {length}, got {stride}")
    framed = documents if bos is None else closed(documents, bos, eos)
    document, begin = _pieces(framed.lengths() - 1, length, stride)
    starts, ends = framed.offsets[document] + begin, framed.offsets[document + 1] - 1
    sizes = np.zeros(len(documents)) if document_bytes is None else np.asarray(document_bytes)
    weights = np.where(begin == 0, sizes[document], 0).astype(np.float32)
    fresh = np.where(begin == 0, 0, length - stride)  # index of a window's first target that counts
    filler = (0, -len(starts) % rows)  # empty windows for the padding rows
    starts, ends, weights, fresh = (np.pad(a, filler) for a in (starts, ends, weights, fresh))
    positions = np.arange(length)
    for some in np.arange(len(starts)).reshape(-1, rows):
        source = starts[some, None] + positions
        real = source < ends[some, None]
        yield {
            "tokens": np.where(real, framed.values.take(source, mode="clip"), 0),
            "targets": np.where(real, framed.values.take(source + 1, mode="clip"), 0),
            "mask": real & (positions >= fresh[some, None]),
            "bytes": weights[some],
        }
