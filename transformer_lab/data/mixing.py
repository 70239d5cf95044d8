"""Mixtures: how often each of several tasks' examples are drawn, and in which order."""

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int

from transformer_lab.data.batching import BatchPlan, Draws
from transformer_lab.data.buckets import Shape
from transformer_lab.errors import LabError


def mixing_rates(
    sizes: Sequence[int], limit: int = 0, temperature: float = 1.0
) -> Float64[np.ndarray, "tasks"]:
    """Each task's share of the examples drawn (Raffel 2020, section 3.5.2): min(size, limit)^(1/T).

    limit 0: none. T = 1 is examples-proportional mixing; the larger T, the more equal the shares.
    """
    if not len(sizes) or min(sizes) < 1:
        raise LabError(f"tasks of {list(sizes)} examples cannot be mixed: each needs one")
    if limit < 0 or temperature < 1:
        raise LabError(
            f"mixing limit = {limit} must not be negative, temperature = {temperature} at least 1"
        )
    capped = np.minimum(sizes, limit or max(sizes)).astype(np.float64) ** (1 / temperature)
    return capped / capped.sum()


class MixedPlan(BatchPlan):
    """Batches of several tasks' examples, drawn at given rates, as a pure function of (seed, step).

    `tasks` gives each example's task, 0 the first. `plan[step]` is `(bucket, ids)`, int64 [rows,
    2]: an example and a draw for what is random in it; filler rows are -1. An epoch draws as many
    examples as there are, each bucket of a task its share of the task's; a task goes through its
    examples in an order of its own, and in a new one after the last, across epochs.
    """

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
        """A cell's examples in an epoch: the next of its endless row of orders."""
        members, count = self._members[cell], int(self._drawn[cell])
        first = epoch * count
        rounds = range(first // len(members), (first + count - 1) // len(members) + 1)
        rngs = (np.random.default_rng((self.seed, cell, turn, 3)) for turn in rounds)
        row = np.concatenate([rng.permutation(members) for rng in rngs])
        skip = first - rounds[0] * len(members)
        return row[skip : skip + count]

    def shares(self) -> Float64[np.ndarray, "tasks"]:
        """Each task's share of an epoch's examples."""
        drawn = self._drawn.reshape(len(self.rates), -1).sum(axis=1)
        return drawn / drawn.sum()

    def padding_share(self) -> float:
        slots = [rows * sum(shape) for rows, shape in zip(self._rows, self.shapes, strict=True)]
        means = [self.lengths[m].sum() / max(len(m), 1) for m in self._members]
        return 1.0 - float(self._drawn @ means) / float(self._batches @ slots)

    @cached_property
    def _digest(self) -> str:
        parts = super()._digest, self.rates.tolist(), self.tasks.tolist()
        return hashlib.sha256(repr(parts).encode()).hexdigest()
