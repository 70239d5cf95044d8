"""Batches read ahead by threads, and a place in them that a checkpoint can hold."""

import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np

from transformer_lab.data.batching import BatchPlan
from transformer_lab.data.buckets import Shape
from transformer_lab.errors import LabError

Batch = dict[str, np.ndarray]


class Batches(Iterator[Batch]):
    """The batches of a plan from step `start` on: for ever, or one epoch with `repeat=False`.

    `load(ids, shape)` makes a batch of example ids, -1 being a filler row; it runs in threads, so
    it may read but not change. For padded token ids it is `partial(fill, fields, pad_id=0)`.
    A batch depends on the plan and the step alone, so the state is one number, kept with the
    plan's fingerprint. Use as a context manager, or `close()`, to end the threads.
    """

    def __init__(
        self,
        plan: BatchPlan,
        load: Callable[[np.ndarray, Shape], Batch],
        start: int = 0,
        repeat: bool = True,
    ):
        self._plan, self._load = plan, load
        # Grain wraps an index at the length of its source, so a source of one epoch would repeat
        # epoch 0 for ever: the source is the steps themselves.
        self._steps = sys.maxsize if repeat else len(plan)
        steps = grain.MapDataset.range(self._steps).map(self._read)
        ahead = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
        self._iterator = iter(steps.to_iter_dataset(ahead))
        self._seek(start)

    def _read(self, step: int) -> Batch:
        bucket, ids = self._plan[step]
        return self._load(ids, self._plan.shapes[bucket])

    def __next__(self) -> Batch:
        return next(self._iterator)

    def get_state(self) -> dict[str, Any]:
        """The step of the next batch and the plan it counts in; plain JSON."""
        place = self._iterator.get_state()["next_index"]
        return {"next_index": int(place), "fingerprint": self._plan.fingerprint()}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a saved place; LabError if it was saved under another plan."""
        if set(state) != {"next_index", "fingerprint"}:
            raise LabError(f"not a data state: keys {sorted(state)}; restore what get_state gave")
        if state["fingerprint"] != self._plan.fingerprint():
            raise LabError(
                "the saved data position belongs to other batches: the data, seed, batch shapes,"
                " tokens_per_batch or rows a batch (data x fsdp x micro-batches) changed; set them"
                " as they were, or start in a new directory"
            )
        self._seek(state["next_index"])

    def _seek(self, step: int) -> None:
        if not 0 <= operator.index(step) <= self._steps:
            raise LabError(f"data step {step} is not within 0 and {self._steps}")
        self._iterator.set_state({"next_index": int(step)})

    def close(self) -> None:
        """Ends the reading threads; no batch can be taken afterwards."""
        self._iterator.close()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
