"""Mixtures: how often the examples of each task are drawn, and in which order.

A row may hold several examples, so that each batch mixes the tasks. Batches of one length would
hold one task each, as tasks differ in length: their gradients would alternate, and the mixture
would learn less than each task alone."""

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int, Int64

from transformer_lab.data.batching import BatchPlan, Draws
from transformer_lab.data.buckets import Shape
from transformer_lab.errors import LabError


def mixing_rates(
    sizes: Sequence[int], limit: int = 0, temperature: float = 1.0
) -> Float64[np.ndarray, "tasks"]:
    """Each task's share of the examples drawn: min(size, limit)^(1/T) (Raffel 2020, 3.5.2).

    limit 0 means none. T = 1 is examples-proportional mixing; a larger T gives more equal shares.
    Sizes 1 and 4 give the shares 0.2 and 0.8, or 1/3 and 2/3 with T = 2."""
    if not len(sizes) or min(sizes) < 1:
        raise LabError(f"tasks of {list(sizes)} examples cannot be mixed: each needs one")
    if limit < 0 or temperature < 1:
        raise LabError(
            f"mixing limit = {limit} must not be negative, temperature = {temperature} at least 1"
        )
    capped = np.minimum(sizes, limit or max(sizes)).astype(np.float64) ** (1 / temperature)
    return capped / capped.sum()


class MixedPlan(BatchPlan):
    """Batches of several tasks' examples drawn at given rates, a pure function of (seed, step).

    `tasks` gives the task of each example, from 0. `plan[step]` is `(bucket, ids)`, int64 [rows,
    2]: an example and a random seed for it; padding rows are -1. An epoch draws as many examples as
    there are, from each bucket of a task in proportion to its size. A task goes through its
    examples in a shuffled order, and through a new one after the last, across epochs."""

    draws = Draws(2, 2**63, False)

    def __init__(
        self,
        lengths: Int[np.ndarray, "n fields"],
        tasks: Int[np.ndarray, "n"],
        rates: Float64[np.ndarray, "tasks"],
        shapes: Sequence[Shape],
        tokens_per_batch: int,
        multiple: int = 1,
        seed: int = 0,
    ):
        super().__init__(lengths, shapes, tokens_per_batch, multiple, seed)
        self.tasks, self.rates = tasks, rates
        cells = self.tasks * len(self.shapes) + self._buckets
        self._members = [np.flatnonzero(cells == c) for c in range(len(rates) * len(self.shapes))]
        sizes = np.array([len(members) for members in self._members]).reshape(len(rates), -1)
        wanted = np.rint(len(tasks) * self.rates[:, None] * sizes / sizes.sum(axis=1)[:, None])
        self._drawn = np.where(sizes, np.maximum(wanted, 1), 0).astype(np.int64).ravel()
        self._examples = self._drawn.reshape(len(rates), -1).sum(axis=0)
        self._batches = -(-self._examples // self._rows)

    def _order(self, epoch: int, rng: np.random.Generator) -> np.ndarray:
        drawn = [self._draw(cell, epoch) for cell in np.flatnonzero(self._drawn).tolist()]
        return rng.permutation(np.concatenate(drawn))

    def _draw(self, cell: int, epoch: int) -> np.ndarray:
        """An epoch's examples of one task and bucket: the next of endless shuffled orders."""
        members, count = self._members[cell], int(self._drawn[cell])
        first = epoch * count
        rounds = range(first // len(members), (first + count - 1) // len(members) + 1)
        rngs = (np.random.default_rng((self.seed, cell, turn, 3)) for turn in rounds)
        row = np.concatenate([rng.permutation(members) for rng in rngs])
        skip = first - rounds[0] * len(members)
        return row[skip : skip + count]

    def shares(self) -> Float64[np.ndarray, "tasks"]:
        """The share of each task in the examples of an epoch."""
        drawn = self._drawn.reshape(len(self.rates), -1).sum(axis=1)
        return drawn / drawn.sum()

    def _tokens(self) -> float:
        means = [self.lengths[m].sum() / max(len(m), 1) for m in self._members]
        return float(self._drawn @ means)

    @cached_property
    def _digest(self) -> str:
        parts = super()._digest, self.rates.tolist(), self.tasks.tolist()
        return hashlib.sha256(repr(parts).encode()).hexdigest()


class PackedPairsPlan(MixedPlan):
    """A mixture with several examples in each row of one shape.

    `plan[step]` is `(0, ids)` with int64 ids [rows, most, 2]: a row's examples and their random
    seeds, then -1. An example goes into the first row of the batch that has room in each field,
    else it waits for the next batch; when as many wait as there are rows, the batch is complete.
    Each epoch has as many batches as the first: others are left out, or its first repeated."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self._batches = np.array([len(self._packed(0))])

    def _packed(self, epoch: int) -> list[np.ndarray]:
        order = self._order(epoch, np.random.default_rng((self.seed, epoch))).tolist()
        return pack_pairs(self.lengths, order, self.shapes[0], self.rows(0))

    def _make(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        made = self._packed(epoch)
        return [(0, made[i % len(made)]) for i in range(self.batches_per_epoch)]

    def describe(self) -> list[str]:
        return [f"{super().describe()[0]}, {self._drawn.sum() / self._batches.sum():.1f} a batch"]

    def fingerprint(self) -> str:
        return f"packed {super().fingerprint()}"


def pack_pairs(
    lengths: Int[np.ndarray, "n fields"], order: Sequence[int], shape: Sequence[int], rows: int
) -> list[Int64[np.ndarray, "rows most"]]:
    """The examples `order` in batches of rows, as `PackedPairsPlan` packs them, -1 after the last.

    Raises: LabError for an example that no row holds."""
    long = np.flatnonzero((lengths > np.asarray(shape)).any(axis=1))
    if len(long):
        raise LabError(
            f"example {long[0]} of {'x'.join(map(str, lengths[long[0]].tolist()))} tokens does not "
            f"fit in a row of {'x'.join(map(str, shape))}: lower batch.max_length"
        )
    sizes, batches, waiting, place = lengths.tolist(), [], [], 0
    while waiting or place < len(order):
        batch, space, late = [[] for _ in range(rows)], [list(shape) for _ in range(rows)], []
        while len(late) < rows and (waiting or place < len(order)):
            if waiting:
                example = waiting.pop(0)
            else:
                example, place = order[place], place + 1
            size = sizes[example]
            for row, left in zip(batch, space, strict=True):
                if all(a <= b for a, b in zip(size, left, strict=True)):
                    row.append(example)
                    left[:] = [b - a for a, b in zip(size, left, strict=True)]
                    break
            else:
                late.append(example)
        waiting = late + waiting
        most = max(map(len, batch))
        ids = np.array([row + [-1] * (most - len(row)) for row in batch], np.int64)
        ids.flags.writeable = False
        batches.append(ids)
    return batches


def join_rows(
    batch: dict[str, np.ndarray],
    fields: Sequence[str],
    counts: Int[np.ndarray, "rows"],
    shape: Sequence[int],
    pad_id: int,
) -> dict[str, np.ndarray]:
    """Packs padded examples [n, length] into rows, `counts` of them in each, one after the other.

    Each field gets its mask and `FIELD_segments`, int32: 1, 2, ... for examples (0: padding)."""
    row = np.repeat(np.arange(len(counts)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    joined = {}
    for name, length in zip(fields, shape, strict=True):
        mask = batch[f"{name}_mask"]
        sizes = mask.sum(axis=1)
        before = np.cumsum(sizes) - sizes
        start = before - before[first] if len(row) else before
        target = (row * length + start)[:, None] + np.arange(mask.shape[1])
        tokens = np.full((len(counts), length), pad_id, np.int32)
        segments = np.zeros(tokens.shape, np.int32)
        tokens.flat[target[mask]] = batch[name][mask]
        rank = np.arange(len(row)) - first + 1
        segments.flat[target[mask]] = np.broadcast_to(rank[:, None], mask.shape)[mask]
        joined |= {name: tokens, f"{name}_mask": segments > 0, f"{name}_segments": segments}
    return joined
