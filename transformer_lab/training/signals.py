"""Signals that tell a run to stop: SIGTERM, Ctrl-C, and SIGUSR1 and SIGUSR2 of schedulers.

The module imports nothing heavy, so that a command can catch signals before anything else.
"""

import contextlib
import os
import signal
import sys
from typing import Any

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Stopped(SystemExit):
    """All processes of the run stop together; the exit code is 128 + the signal's number."""


class Signals:
    """The signals that this process has received.

    Once they are caught, a signal ends the process with a line, for there is nothing to save. While
    they are held it is noted in `received`, and the loop saves before it stops. A second Ctrl-C
    acts at once; other signals may come twice, from a scheduler that repeats them.
    """

    def __init__(self):
        self.received: int | None = None
        self._code: int | None = None  # with which a signal is ending the process
        self._holding, self._old, self._owner = False, {}, 0

    def catch(self) -> None:
        """Catches signals from now on, except outside the main thread, where Python forbids it."""
        self._owner = os.getpid()
        for number in NUMBERS if not self._old else ():
            try:
                self._old[number] = signal.signal(number, self._handle)
            except ValueError:
                return

    @contextlib.contextmanager
    def ending(self):
        """A context which a signal ends with its own exit code. This holds also where a library
        that was interrupted has turned the exit into another error."""
        try:
            yield
        except Exception as error:
            if self._code is None:
                raise
            raise SystemExit(self._code) from error

    @contextlib.contextmanager
    def held(self):
        """A context in which signals are noted in `received`; old handlers return afterwards."""
        self.catch()
        self._holding = True
        try:
            yield self
        finally:
            self._holding, self.received = False, None
            for number, handler in self._old.items():
                signal.signal(number, handler)
            self._old = {}

    def _handle(self, number: int, frame: Any) -> None:
        if os.getpid() != self._owner:  # a forked worker: as if nobody had caught it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif number == signal.SIGINT and (self.received or not self._holding):
            raise KeyboardInterrupt
        elif self._holding:
            self.received = self.received or number
        else:
            name = signal.Signals(number).name
            os.write(sys.__stderr__.fileno(), f"{name}: stopped, nothing to save\n".encode())
            self._code = 128 + number
            raise SystemExit(self._code)


SIGNALS = Signals()  # the one of this process
