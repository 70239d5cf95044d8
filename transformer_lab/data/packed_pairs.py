"""Rows that hold several (source, target) examples, so that each batch mixes the tasks.

Batches of one length each would be batches of one task, since tasks differ in their lengths: their
gradients take turns, and the mixture learns less than each task alone.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Int64

from transformer_lab.data.mixing import MixedPlan
from transformer_lab.errors import LabError


class PackedPairsPlan(MixedPlan):
    """A mixture's examples, several a row of its one shape; `plan[step]` is `(0, ids)`, ids being
    int64 [rows, most, 2]: a row's examples and their draws, then fillers of -1.

    An example goes into the first row of the batch that has room in each field, or waits for the
    next batch; when as many wait as there are rows, the batch is done. Epochs have as many batches
    as the first: what is over is left out, what is missing is taken from the epoch's begin.
    """

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
    """The examples `order` in batches of rows, each row's first, -1 after its last; see the plan.

    Raises LabError for an example that no row holds.
    """
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
    """Padded examples [n, length] as packed rows, `counts` of them in each, one after the other.

    Each field gets its mask, and `FIELD_segments`: int32, 1, 2, ... for a row's examples, 0 for
    padding.
    """
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
