"""The order of data larger than memory, as a pure function of (seed, step).

Memory does not grow with the data: the order of records comes from permutations that are computed
one index at a time, and records of similar lengths from the index in `data.shards`."""

import hashlib
from collections import defaultdict
from collections.abc import Callable
from functools import cached_property, lru_cache

import numpy as np
from grain.experimental import index_shuffle
from jaxtyping import Float64, Int, Int64

from transformer_lab.data.batching import BatchPlan, Draws, check_row_shape, fits
from transformer_lab.data.buckets import choose_buckets
from transformer_lab.data.shards import Shards
from transformer_lab.errors import LabError


def permuted(indices: Int[np.ndarray, "n"], count: int, *key: int) -> Int64[np.ndarray, "n"]:
    """Where a permutation of 0 to count - 1, chosen by the key, puts each index."""
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    moved = _moved_of_few if count <= 4096 else _moved
    found = (moved(i, int(count) - 1, seed) for i in indices.tolist())
    return np.fromiter(found, np.int64, len(indices))


def _moved(index: int, last: int, seed: int) -> int:
    return index_shuffle(index, max_index=last, seed=seed, rounds=4)


# index_shuffle is slower the fewer indices there are, up to milliseconds: results are cached.
_moved_of_few = lru_cache(maxsize=2**16)(_moved)


class Members:
    """The pieces of the records in some cells, from 0; `pieces` for each record of a cell."""

    def __init__(self, shards: Shards, chosen: np.ndarray, pieces: np.ndarray | None = None):
        self._order = shards.order
        self._first = (np.cumsum(shards.counts) - shards.counts)[chosen]
        self._pieces = np.ones(len(chosen), np.int64) if pieces is None else pieces
        self._ends = np.cumsum(shards.counts[chosen] * self._pieces)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def find(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The record and the piece of it that have each of these numbers."""
        cell = np.searchsorted(self._ends, numbers, "right")
        within = numbers - np.concatenate([[0], self._ends])[cell]
        place, piece = np.divmod(within, self._pieces[cell])
        return self._order[self._first[cell] + place].astype(np.int64), piece


class CountedPlan(BatchPlan):
    """A `BatchPlan` that keeps only the cells: which lengths occur, and how often.

    `_ids(bucket, epoch, numbers)` gives the examples for numbers of a bucket, shuffled anew."""

    _ids: Callable[[int, int, np.ndarray], np.ndarray]

    def __init__(self, cells, counts, shapes, tokens_per_batch, multiple=1, seed=0, name=""):
        super().__init__(cells, shapes, tokens_per_batch, multiple, seed)
        self._kind, self._counts = name, np.asarray(counts, np.int64)
        self._count(np.bincount(self._buckets, self._counts, len(self.shapes)))

    def _count(self, examples: np.ndarray) -> None:
        self._examples = examples.astype(np.int64)
        self._batches = -(-self._examples // self._rows)

    def _batch(self, epoch: int, place: int) -> tuple[int, Int64[np.ndarray, "rows *more"]]:
        turn = int(permuted(np.array([place]), len(self), self.seed, epoch)[0])
        ends = np.cumsum(self._batches)
        bucket = int(np.searchsorted(ends, turn, "right"))
        first = (turn - int(ends[bucket] - self._batches[bucket])) * self._rows[bucket]
        count = int(self._examples[bucket])
        numbers = np.arange(first, min(first + self._rows[bucket], count))
        ids = self._ids(bucket, epoch, permuted(numbers, count, self.seed, epoch, bucket, 1))
        filler = np.full((self._rows[bucket] - len(ids), *ids.shape[1:]), -1, np.int64)
        return bucket, np.concatenate([ids, filler])

    def _tokens(self) -> float:
        return float(self._counts @ self.lengths.sum(axis=1))

    @cached_property
    def _digest(self) -> str:
        own = f"{self._kind} {self.shapes} {self._rows} {self.seed}"
        return hashlib.sha256(own.encode()).hexdigest()


class ShardPlan(CountedPlan):
    """Batches of records of similar lengths; ids are record numbers, -1 for padding rows.

    Records longer than `longest` are left out and counted as `dropped`. With `rates`, one for each
    part, parts are mixed as in `data.mixing.MixedPlan`: an epoch draws as many records as there
    are, and a part goes through its own in one shuffled order after another."""

    def __init__(
        self,
        shards: Shards,
        longest: int | Int[np.ndarray, "fields"],
        buckets: int,
        tokens_per_batch: int,
        multiple: int,
        seed: int,
        rates: Float64[np.ndarray, "parts"] | None = None,
    ):
        kept = np.flatnonzero(fits(shards.cells, longest))
        cells, counts, parts = shards.cells[kept], shards.counts[kept], shards.cell_parts[kept]
        self.dropped = len(shards) - int(counts.sum())
        if not len(kept):
            raise LabError(
                f"every record of {shards.folder} is longer than {longest}: raise batch.max_length"
            )
        slots = tokens_per_batch, multiple
        shapes = choose_buckets(cells, buckets, *slots, counts=counts)
        super().__init__(cells, counts, shapes, *slots, seed, f"{shards.fingerprint} {rates}")
        grid = [
            (part, bucket) for part in range(len(shards.parts)) for bucket in range(len(shapes))
        ]
        chosen = [kept[(parts == part) & (self._buckets == bucket)] for part, bucket in grid]
        members = [Members(shards, cells_) for cells_ in chosen]
        self._members = [members[i :: len(shapes)] for i in range(len(shapes))]
        sizes = np.array([len(m) for m in members], np.int64).reshape(-1, len(shapes))
        self._drawn = sizes
        if rates is not None:
            if not sizes.sum(axis=1).all():
                name = shards.parts[int(sizes.sum(axis=1).argmin())]
                raise LabError(f'no example of the task "{name}" fits: raise batch.max_length')
            each = np.maximum(1, sizes.sum(axis=1))[:, None]
            wanted = sizes.sum() * rates[:, None] * sizes / each
            self._drawn = np.where(sizes, np.maximum(np.rint(wanted), 1), 0).astype(np.int64)
            self._counts = counts * (self._drawn / np.maximum(sizes, 1))[parts, self._buckets]
        self._mixed = rates is not None
        self._count(self._drawn.sum(axis=0))

    def _ids(self, bucket: int, epoch: int, numbers: np.ndarray) -> np.ndarray:
        drawn = self._drawn[:, bucket]
        ends = np.cumsum(drawn)
        parts = np.searchsorted(ends, numbers, "right")
        ids = np.empty(len(numbers), np.int64)
        for part in np.unique(parts).tolist():
            members, rows = self._members[bucket][part], np.flatnonzero(parts == part)
            mine = numbers[rows] - (ends[part] - drawn[part])
            if self._mixed:
                turns, mine = np.divmod(mine + epoch * drawn[part], len(members))
                for turn in np.unique(turns).tolist():
                    now = turns == turn
                    key = self.seed, part, bucket, turn, 3
                    mine[now] = permuted(mine[now], len(members), *key)
            ids[rows] = members.find(mine)[0]
        return ids

    def shares(self) -> Float64[np.ndarray, "parts"]:
        """The share of each part in the examples of an epoch."""
        return self._drawn.sum(axis=1) / self._drawn.sum()


class _DocumentPlan(CountedPlan):
    """Rows of one length; with `draws` the last column of the ids is a random number below 2^32."""

    def __init__(self, shards, filled, counts, length, rows, seed, draws, kind):
        check_row_shape(length, rows)
        name = f"{kind} {draws} {shards.fingerprint}"
        super().__init__(filled[:, None], counts, [(length,)], rows * length, 1, seed, name)
        self.draws = Draws(2, 2**32, False) if draws else None

    def _with_draws(self, ids, step):
        if self.draws is None:
            return ids
        draws = super()._with_draws(ids.reshape(len(ids), -1)[:, 0], step)[:, 1]
        draws = draws.reshape(-1, *[1] * (ids.ndim - 1))
        return np.concatenate([ids, np.broadcast_to(draws, (*ids.shape[:-1], 1))], axis=-1)


class StreamShardPlan(_DocumentPlan):
    """Windows of the stream of documents, as in `data.packing.StreamPlan`; ids are their starts.

    `ends` are the positions where documents end in the stream, each with its end token and, if
    there is one, its `start` token."""

    def __init__(
        self,
        shards: Shards,
        length: int,
        rows: int,
        seed: int = 0,
        prefix: bool = False,
        start: int | None = None,
    ):
        self.ends = shards.ends
        if start is not None:
            self.ends = shards.ends.astype(np.int64) + np.arange(len(shards.ends))
        self.tokens = int(self.ends[-1])
        if self.tokens < length:
            raise LabError(f"{self.tokens} tokens do not fill a row of {length}: lower the length")
        count, filled = [self.tokens // max(1, length)], np.array([length])
        super().__init__(shards, filled, count, length, rows, seed, prefix, "stream")

    def _ids(self, bucket: int, epoch: int, numbers: np.ndarray) -> np.ndarray:
        (length,) = self.shapes[0]
        offset = np.random.default_rng((self.seed, epoch, 1)).integers(length)
        return (numbers * length + offset)[:, None] % self.tokens


class PackedShardPlan(_DocumentPlan):
    """Rows of whole documents, or pieces of long ones, each once an epoch.

    Which lengths share a row follows from their histogram alone (see `pack_histogram`); which
    documents of these lengths do, is drawn in each epoch. Ids are [rows, most, 2]: the document and
    its first target, -1 where a row has fewer pieces."""

    def __init__(self, shards: Shards, length: int, rows: int, seed: int = 0, prefix: bool = False):
        self._lengths = shards.lengths[:, 0]
        targets = shards.cells[:, 0] + 1  # the end token is one of them
        full, rest = targets // max(1, length), targets % max(1, length)
        self._full = Members(shards, np.flatnonzero(full), full[full > 0])
        self._rest = {
            int(r): Members(shards, np.flatnonzero(rest == r)) for r in np.unique(rest) if r
        }
        counts = [len(self._rest.get(size, ())) for size in range(length)] + [len(self._full)]
        patterns = pack_histogram(counts)
        self._sizes = [np.array(sizes) for sizes, _ in patterns]
        repeats = np.array([count for _, count in patterns], np.int64)
        self._ends = np.cumsum(repeats)
        # For each piece of a pattern, the number of its first among all pieces of its size.
        used, self._bases = np.zeros(length + 1, np.int64), []
        for sizes, count in zip(self._sizes, repeats.tolist(), strict=True):
            self._bases.append(bases := np.empty(len(sizes), np.int64))
            for place, size in enumerate(sizes.tolist()):
                bases[place], used[size] = used[size], used[size] + count
        filled = np.array([sizes.sum() for sizes in self._sizes], np.int64)
        super().__init__(shards, filled, repeats, length, rows, seed, prefix, "packed")

    def _ids(self, bucket: int, epoch: int, numbers: np.ndarray) -> np.ndarray:
        (length,) = self.shapes[0]
        pattern = np.searchsorted(self._ends, numbers, "right")
        within = numbers - np.concatenate([[0], self._ends])[pattern]
        most = max(len(self._sizes[p]) for p in pattern.tolist())
        sizes = np.zeros((len(numbers), most), np.int64)
        pieces = np.zeros_like(sizes)
        for row, (p, w) in enumerate(zip(pattern.tolist(), within.tolist(), strict=True)):
            sizes[row, : len(self._sizes[p])] = self._sizes[p]
            pieces[row, : len(self._sizes[p])] = self._bases[p] + w
        ids = np.full((*sizes.shape, 2), -1, np.int64)
        for size in np.unique(sizes[sizes > 0]).tolist():
            members = self._full if size == length else self._rest[size]
            here = sizes == size
            mine = permuted(pieces[here], len(members), self.seed, epoch, size, 4)
            document, piece = members.find(mine)
            if size < length:
                piece = (self._lengths[document] + np.int64(1)) // length
            ids[here] = np.stack([document, piece * length], axis=-1)
        return ids


def pack_histogram(counts: list[int]) -> list[tuple[tuple[int, ...], int]]:
    """Packs pieces into rows, given only how many there are of each size: best fit decreasing.

    `counts[size]` is the number of pieces of `size` tokens; the last size is the row's length.
    Gives the sizes in a row, and the number of such rows: every piece is in one of them. It works
    as `data.packing.pack` with equal rows handled together, so that its time does not depend on the
    number of pieces (Krell 2021, "Efficient Sequence Packing", section 3)."""
    length = len(counts) - 1
    rows: dict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)  # by the space left
    for size in range(length, 0, -1):
        left = counts[size]
        for space in sorted(s for s, found in rows.items() if found and s >= size):
            each = space // size
            while left and rows[space]:
                sizes, repeats = rows[space].pop()
                taken = min(repeats, max(1, left // each))
                some = min(each, left)
                left -= taken * some
                rows[space - some * size].append(((*sizes, *[size] * some), taken))
                if taken < repeats:
                    rows[space].append((sizes, repeats - taken))
        each = length // size
        if left >= each:
            rows[length - each * size].append(((size,) * each, left // each))
        if left % each:
            rows[length - left % each * size].append(((size,) * (left % each), 1))
    return [row for space in sorted(rows) for row in rows[space]]
