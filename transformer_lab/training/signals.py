"""A run that is told to stop."""

import signal
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


class Signals:
    """Turns SIGTERM and SIGINT into a flag; a second one acts at once."""

    def __init__(self):
        self.received: int | None = None
        self._old: dict[int, Any] = {}

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._old[number] = signal.signal(number, self._handle)
            except ValueError:  # not the main thread: the caller's business
                return self
        return self

    def _handle(self, number, frame):
        self.received = number
        self.restore()

    def restore(self):
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}

    def __exit__(self, *_):
        self.restore()


def agreed(number: int | None) -> int:
    """The largest that any process of the run has: what they all stop by, at the same step."""
    if jax.process_count() == 1:
        return number or 0
    return int(multihost_utils.process_allgather(np.int32(number or 0)).max())
