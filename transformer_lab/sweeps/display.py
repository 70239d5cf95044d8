"""Shows how a sweep progresses: a live table on a terminal, lines of a log elsewhere."""

import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from transformer_lab.sweeps.experiment import Run
from transformer_lab.sweeps.states import FAILED, RUNNING, failure, progress, state_of
from transformer_lab.training.writers import log

SELDOM = 30.0  # seconds between two lines about one run, without a terminal
STYLES = {"finished": "green", "failed": "red", "running": "yellow"}


class Board:
    """The display of a sweep: the state, step, loss and time left of each run."""

    def __init__(self, runs: list[Run], workdir: Path):
        self._runs, self._workdir, self._states, self._told = runs, workdir, {}, {}
        console = Console(stderr=True)
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        if self._live:
            self._live.start()

    def update(self) -> None:
        """Refreshes the table, or logs a line for each run whose state has changed, and every so
        often one with the step, loss and time left of each run that goes on."""
        if self._live:
            self._live.update(table(self._runs, self._workdir), refresh=True)
            return
        for i, run in enumerate(self._runs, 1):
            directory = self._workdir / run.name
            state = state_of(directory)
            if self._states.get(run.name, "waiting") != state:
                what = f": {failure(directory)}" if state == FAILED else ""
                log(f"{i}/{len(self._runs)} {run.name} {state}{what}")
                self._told[run.name] = time.monotonic(), progress(directory)
            elif state == RUNNING and time.monotonic() - self._told[run.name][0] > SELDOM:
                before, now = self._told[run.name][1], progress(directory)
                if now != before:
                    log(f"{i}/{len(self._runs)} {run.name}: step {now.step}, loss {now.loss}, "
                        f"left {now.left}")  # fmt: skip
                self._told[run.name] = time.monotonic(), now
            self._states[run.name] = state

    def close(self) -> None:
        """Shows the final state, which remains on the terminal, and stops the live display."""
        self.update()
        if self._live:
            self._live.stop()


def table(runs: list[Run], workdir: Path) -> Table:
    """A table with one line for each run: name, state, step, loss (or error) and time left."""
    found = Table("run", "state", "step", "loss", "time left")
    for run in runs:
        directory = workdir / run.name
        state, now = state_of(directory), progress(directory)
        cells = [now.step, now.loss, now.left if state == RUNNING else ""]
        if state == FAILED:
            cells[1] = failure(directory)
        name = Text(run.name)  # Text: [brackets] are no markup
        found.add_row(name, Text(state, STYLES.get(state, "")), *map(Text, cells))
    return found
