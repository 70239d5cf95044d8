"""Reads batches ahead in threads or processes, at a position that a checkpoint can store."""

import operator
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grain
import numpy as np
from absl import flags

from transformer_lab.data.batching import BatchPlan
from transformer_lab.errors import LabError

Batch = dict[str, np.ndarray]


class Batches(Iterator[Batch]):
    """An endless iterator over the batches of a plan.

    `load(ids, shape)` makes a batch of example ids, where -1 is a padding row; as it runs in
    threads, it must not change anything. For padded token ids it is `partial(fill, fields,
    pad_id=0)`. With `by_rows`, `load` can make some rows of a batch only: its third argument says
    which rows are needed, bool [rows], or None for all; see `only`.

    A batch depends only on the plan and the step, so the state is one number, stored with the
    plan's fingerprint. It does not depend on `workers`, the number of processes that read, each
    with a copy of the plan and `load`; 0 means threads. `close()` ends them."""

    def __init__(
        self,
        plan: BatchPlan,
        load: Callable[..., Batch],
        workers: int = 0,
        by_rows: bool = False,
    ):
        self._plan = plan
        self._load, self._by_rows, self._needed = load, by_rows, None
        self._workers, self._closed, self._iterator = workers, False, None
        self._place = 0  # the step of the next batch

    def __next__(self) -> Batch:
        if self._iterator is None:
            self._iterator = self._open()
        batch = next(self._iterator)
        self._place += 1
        return batch

    def only(self, needed: Callable[[int], np.ndarray]) -> None:
        """Loads only the rows `needed(n)` of each batch of n rows, if `load` can. The other rows
        hold no tokens, but their masks are right, so that counts are those of the whole batch."""
        self._needed = needed if self._by_rows else None

    def _open(self) -> Iterator[Batch]:
        """Starts reading at the current position; its threads start with the first batch."""
        if self._closed:
            raise ValueError("the batches were closed")
        # Grain wraps an index at the length of its source, so a source of one epoch would repeat
        # epoch 0 for ever: the source is the steps themselves.
        steps = grain.MapDataset.range(self._place, sys.maxsize).map(
            partial(_read, self._plan, self._load, self._needed)
        )
        ahead = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
        batches = steps.to_iter_dataset(ahead)
        if self._workers:
            if not flags.FLAGS.is_parsed():  # in notebooks and tests; Grain reads its own flags
                flags.FLAGS.mark_as_parsed()
            # Containers have little shared memory, and prefetched batches would stay in it.
            by_pipe = grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
            batches = grain.experimental.WithOptionsIterDataset(batches, by_pipe)
            options = grain.MultiprocessingOptions(self._workers, per_worker_buffer_size=4)
            batches = batches.mp_prefetch(options)
        return iter(batches)

    def get_state(self) -> dict[str, Any]:
        """The step of the next batch and the plan's fingerprint, as plain JSON."""
        return {"next_index": self._place, "fingerprint": self._plan.fingerprint()}

    def restore(self, state: dict[str, Any]) -> None:
        """Moves to a stored position; LabError if it belongs to another plan."""
        if set(state) != {"next_index", "fingerprint"}:
            raise LabError(f"not a data state: keys {sorted(state)}; restore what get_state gave")
        if state["fingerprint"] != self._plan.fingerprint():
            raise LabError(
                "the saved data position belongs to other batches: the data, seed, batch shapes,"
                " tokens_per_batch or rows a batch (data x fsdp x micro-batches) changed; set them"
                " as they were, or start in a new directory"
            )
        if operator.index(step := state["next_index"]) < 0:
            raise LabError(f"data step {step} is negative")
        self._stop()
        self._place = int(step)

    def _stop(self) -> None:
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def close(self) -> None:
        """Ends the threads and processes; no more batches can be taken."""
        self._stop()
        self._closed = True

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _read(plan: BatchPlan, load: Callable[..., Batch], needed: Any, step: int) -> Batch:
    bucket, ids = plan[step]
    more = () if needed is None else (needed(len(ids)),)
    return load(ids, plan.shapes[bucket], *more)
