"""The thread in which an engine runs, and what comes out of it, for an event loop."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import NamedTuple

from transformer_lab.decoding.continuous import Engine, Request
from transformer_lab.training.writers import log


class Part(NamedTuple):
    """New tokens of a request, the end token included; `over` if they are the last."""

    ids: list[int]
    log_probs: list[float]
    over: bool


class Stopped(Exception):
    """The engine has failed or ended, and continues no text any more."""


class Worker:
    """Runs an engine in a thread of its own while there is something to do."""

    def __init__(self, engine: Engine):
        self.engine, self.healthy = engine, True
        self._wake, self._ending = threading.Event(), False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def stream(self, request: Request) -> AsyncIterator[Part]:
        """The parts of a request's answer, at least one. A request that nobody awaits any more is
        cancelled. Raises: Stopped, and what `Engine.submit` raises."""
        loop, parts = asyncio.get_running_loop(), asyncio.Queue()
        put = lambda *part: loop.call_soon_threadsafe(parts.put_nowait, Part(*part))  # noqa: E731
        request.tell = put
        if not self.healthy:
            raise Stopped
        self.engine.submit(request)
        self._wake.set()
        try:
            while True:
                part = await parts.get()
                if part.over and not part.ids:
                    raise Stopped
                yield part
                if part.over:
                    return
        finally:
            self.engine.cancel(request)

    def close(self) -> None:
        """Ends the thread; requests that are left get no more tokens."""
        self._ending, self.healthy = True, False
        self._wake.set()
        self._thread.join()
        self.engine.fail()

    def _run(self) -> None:
        while not self._ending:
            self._wake.clear()
            try:
                busy = self.engine.step()
            except Exception as error:  # of any kind: nothing may be left waiting for it
                log(f"the engine fails: {type(error).__name__}: {error}")
                self.healthy = False
                self.engine.fail()
                return
            if not busy:
                self._wake.wait()
