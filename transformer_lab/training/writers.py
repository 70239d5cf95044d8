"""Where a run's numbers go: metrics.jsonl, TensorBoard if installed, and the terminal."""

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from transformer_lab import terminal
from transformer_lab.errors import LabError, check_file, fits
from transformer_lab.terminal import Waiting
from transformer_lab.training.peers import joined
from transformer_lab.training.places import place, remote, write_atomically
from transformer_lab.training.sinks import open_sinks


def log(message: str) -> None:
    """Writes a line to standard error, from a run's first process; standard output is for results.

    A process alone does not ask which one it is: the question would take hold of the devices, which
    a sweep leaves to its runs.
    """
    if not joined() or jax.process_index() == 0:
        print(message, file=sys.stderr, flush=True)


class MetricWriter:
    """Writes metrics.jsonl: an object on each line with `step`, `time` (seconds since 1970) and
    named values in all digits.

    Only the run's first process writes; `run` is the `RunConfig`, which names further sinks. Lines
    of steps after `start_step` are dropped, and those of that step with names that begin with
    `again`, for they will be written again.
    """

    def __init__(self, workdir: Path, start_step: int, run: Any, again: str = "-"):
        self.path, first = workdir / "metrics.jsonl", jax.process_index() == 0
        if first:
            _drop_lines(self.path, start_step, again)
        self._whole = None  # what a file in a bucket holds, which is written anew for each line
        if first and remote(workdir):
            self._whole = self.path.read_bytes() if self.path.exists() else b""
        path = self.path if first and self._whole is None else os.devnull
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  closed by close()
        self._board = _tensorboard(workdir, start_step) if run.tensorboard and first else None
        self._sinks = open_sinks(run.sinks, workdir) if first else []

    def write(self, step: int, values: dict[str, float | str]) -> None:
        """Appends a line; NaN and infinity become strings, so that every line is JSON."""
        line = {"step": step, "time": round(time.time(), 2)}
        for name, value in values.items():
            line[name] = plain(value)
            if self._board is not None and isinstance(value, int | float):
                self._board.add_scalar(name, value, step)
        for sink in self._sinks:
            sink.write(step, {k: v for k, v in values.items() if isinstance(v, int | float)})
        text = json.dumps(line) + "\n"
        self._file.write(text)
        self._file.flush()
        if self._whole is not None:
            self._whole += text.encode()
            write_atomically(self.path, self._whole)

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()
        for sink in self._sinks:
            sink.close()


def plain(value: Any) -> Any:
    """The value, with strings in place of NaN and infinity, which JSON lacks."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def number(value: Any) -> Any:
    """The inverse of `plain`: "nan", "inf" and "-inf" as numbers."""
    return float(value) if value in ("nan", "inf", "-inf") else value


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """The complete lines of a run's metrics.jsonl, [] without one; a kill can cut the last."""
    return [line for _, line in _whole_lines(workdir / "metrics.jsonl")]


def _whole_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines that hold a step and numbers or texts, each as its text and its values."""
    if not path.exists():
        return
    content = check_file(path).read_bytes().decode(errors="replace")
    for text in content.splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if fits(line, dict[str, float | str]) and fits(line.get("step"), int):
            line = {name: number(value) for name, value in line.items()}
            rate = line.get("steps_per_second", 1.0)
            if 0 <= line["step"] < 2**53 and fits(rate, float) and rate > 0:
                yield text, line


def evaluated(workdir: Path, step: int) -> bool:
    """Whether the validation split was scored at this step, by the lines of metrics.jsonl."""
    lines = (line for line in read_metrics(workdir) if line["step"] == step)
    return any(name.startswith("validation/") for line in lines for name in line)


def _drop_lines(path: Path, step: int, again: str) -> None:
    if not path.exists():
        return
    kept = [
        f"{text}\n"
        for text, values in _whole_lines(path)
        if values["step"] < step
        or (values["step"] == step and not any(name.startswith(again) for name in values))
    ]
    write_atomically(path, "".join(kept).encode())


def _tensorboard(workdir: Path, start_step: int) -> Any | None:
    if remote(workdir):
        log(f"{workdir} cannot hold TensorBoard events: they are left out, metrics.jsonl has all")
        return None
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        log("tensorboardX is not installed: no TensorBoard events (pip install tensorboardX)")
        return None
    return SummaryWriter(str(workdir / "tensorboard"), purge_step=start_step + 1)


class ProgressLine:
    """Shows loss, rate and time left: a bar within 80 columns on a terminal, lines elsewhere."""

    def __init__(self, total: int, start: int):
        self.total, self.start, self.began = total, start, 0.0
        self.interactive = sys.stderr.isatty()
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self.interactive,
        )
        self._task = self._bar.add_task("train", total=total, completed=start, text="")
        self._bar.start()
        self._said = time.monotonic()
        if self.interactive:
            Waiting.bar = lambda text: self._bar.update(self._task, text=text)

    def update(self, step: int, loss: float, text: str | None = None) -> None:
        """Moves the bar. Without a terminal a line has the `text`, if any, or after 10 seconds
        without a line the loss alone. Rate and time left count from the end of the first step, so
        without its compilation."""
        if not self.began:
            self.start, self.began = step, time.monotonic()
        if self.interactive:
            rate = (step - self.start) / max(time.monotonic() - self.began, 1e-9)
            self._bar.update(self._task, completed=step, text=f"loss {loss:.4g}  {rate:.3g}/s")
        elif text is not None or time.monotonic() - self._said > terminal.SELDOM:
            self._said = time.monotonic()
            log(f"step {step}/{self.total}  {text or f'loss {loss:.4f} '}  left {self._left(step)}")

    def _left(self, step: int) -> str:
        if step == self.start:
            return "unknown"
        seconds = (time.monotonic() - self.began) / (step - self.start) * (self.total - step)
        return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d}"

    def close(self) -> None:
        self._bar.stop()
        Waiting.bar = None


def show_samples(rows: list[tuple[str, ...]]) -> None:
    """Prints a table of source, output and reference on standard output."""
    if not rows:
        return
    table = Table("source", "output", "reference", show_lines=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: a cell may hold [markup]
    Console().print(table)


def make_workdir(workdir: Path) -> Path:
    """Creates the directory and returns its path. Raises: LabError if that is impossible."""
    workdir = place(workdir)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"--workdir={workdir}: {error.strerror or error}") from error
    return workdir
