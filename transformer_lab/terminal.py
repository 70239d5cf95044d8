"""What people see while they wait and when something is done: progress, tables, short numbers."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

FIRST, OFTEN, SELDOM = 2.0, 0.5, 10.0  # seconds: until a terminal shows a wait; between two signs
CLEAR = "\r\x1b[K"  # to the start of the line, and erase it


class Waiting:
    """A context that says what is waited for, and how far it is, if that takes more than 2 seconds.

    A terminal shows one line that changes and then goes; elsewhere a plain line comes every 10
    seconds. `Waiting.off` silences all but a run's first process; beside a bar `Waiting.bar` shows
    the line.
    """

    off = False
    bar: Callable[[str], None] | None = None

    def __init__(self, what: str, total: int = 0):
        self.what, self.total, self.done = what, total, 0
        self._over, self._began = threading.Event(), time.monotonic()
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> "Waiting":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()

    def __str__(self) -> str:
        done = f"{self.done:,} of {self.total:,}" if self.total else f"{self.done:,}"
        far = f": {done}" if self.total or self.done else ""
        return f"{self.what}{far}, {time.monotonic() - self._began:.0f} s"

    def _tell(self) -> None:
        pause, shown = FIRST if self._live else SELDOM, False
        while not self._over.wait(pause):
            if Waiting.bar is not None:
                Waiting.bar(str(self))
            elif self._live and not Waiting.off:
                text = f"{CLEAR}{str(self)[: width() - 1]}"
                print(text, end="", file=sys.stderr, flush=True)
                shown = True
            elif not Waiting.off:
                print(self, file=sys.stderr, flush=True)
            pause = OFTEN if self._live else SELDOM
        if shown:
            print(CLEAR, end="", file=sys.stderr, flush=True)


def waited(what: str, items: Iterable[Any]) -> Iterator[Any]:
    """The items as they come, while `Waiting` counts them."""
    with Waiting(what, len(items) if isinstance(items, Sized) else 0) as waiting:
        for item in items:
            yield item
            waiting.done += 1


def width() -> int:
    """The columns of the terminal; 100 where the output is none."""
    from rich.console import Console

    return Console().width if sys.stdout.isatty() or sys.stderr.isatty() else 100


def short(value: Any) -> str:
    """A value as a person reads it: a whole number with commas, else 4 digits of a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if isinstance(value, int) or 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def counted(count: int, unit: str) -> str:
    """A count in words that agree, such as "1 batch" or "1,200 steps"."""
    several = f"{unit}es" if unit.endswith("ch") else f"{unit}s"
    return f"{count:,} {unit if count == 1 else several}"


def print_values(values: Mapping[str, Any]) -> None:
    """Prints results: a line of JSON with all digits for programs, on a terminal a line a value."""
    if not sys.stdout.isatty():
        print(json.dumps(values))
        return
    longest = max(map(len, values), default=0)
    for name, value in values.items():
        print(f"{name:{longest}}  {short(value)}")


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table; where the terminal is too narrow for it, each row as a paragraph instead."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [list(map(str, row)) for row in rows]
    console = Console()
    needed = sum(3 + max(map(len, column)) for column in zip(header, *rows, strict=True)) + 1
    if console.is_terminal and needed > console.width:
        for row in rows:
            parts = [f"{name}: {cell}" for name, cell in zip(header[1:], row[1:], strict=True)
                     if cell not in ("", "-")]  # fmt: skip
            console.print(Text(row[0], "bold"))
            console.print(Text("  " + " · ".join(parts)))
        return
    table = Table()
    for i, name in enumerate(header):
        table.add_column(Text(name), no_wrap=True, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    (console if console.is_terminal else Console(width=max(needed, 80))).print(table)
