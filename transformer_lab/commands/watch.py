"""Shows the live curves of runs, in the terminal or in a page.

    transformer_lab watch runs/en_fr runs/gpt

Each DIR is a run, or a folder of runs such as a sweep's. The terminal shows of each its step, its
loss, the best and newest value of a validation score, its speed and its curve of loss, every
`--seconds`; without a terminal the state is printed once. `--output=FILE.html` writes a page with
all curves, which a browser that has it open reads again and again.
"""

import contextlib
import itertools
import sys
import time
from pathlib import Path

from absl import flags

from transformer_lab.errors import LabError
from transformer_lab.terminal import print_table, short
from transformer_lab.training.checkpoint import rank
from transformer_lab.training.report import HELD, curve
from transformer_lab.training.writers import read_metrics
from transformer_lab.viewing import document

WORDS = True  # directories of runs
LEVELS = "▁▂▃▄▅▆▇█"
HEADER = "run", "step", "loss", "score", "best", "steps/s", "loss so far"


def define() -> None:
    flags.DEFINE_float("seconds", 5.0, "Time between two looks.", lower_bound=0.1)
    flags.DEFINE_string("score", "", "The validation score; else the first besides the loss.")
    flags.DEFINE_string("output", "", "A page of all curves, FILE.html.")
    flags.DEFINE_integer("looks", 0, "End after so many looks; 0: at Ctrl-C.", lower_bound=0)


def main(directories: list[str]) -> None:
    args, runs, terminal = flags.FLAGS, runs_in(directories), sys.stdout.isatty()
    looks = args.looks or (0 if terminal or args.output else 1)
    with contextlib.suppress(KeyboardInterrupt):
        for look in itertools.count(1):
            if args.output:
                Path(args.output).write_text(page(runs, int(args.seconds) or 1), encoding="utf-8")
            if terminal:
                print("\x1b[H\x1b[2J", end="")  # from the screen's top, and clears it
            if terminal or not args.output:
                print_table(HEADER, [line_of(run, args.score) for run in runs])
            if look == looks:
                return
            time.sleep(args.seconds)


def runs_in(directories: list[str]) -> list[Path]:
    """The runs that the directories are, or hold. Raises: LabError for one without any."""
    found = []
    for directory in map(Path, directories):
        inside = sorted(path.parent for path in directory.glob("*/metrics.jsonl"))
        runs = [directory] if (directory / "metrics.jsonl").exists() else inside
        if not runs:
            raise LabError(f"{directory} holds no run (no metrics.jsonl): name one of train")
        found += runs
    if not found:
        raise LabError("no run is named: transformer_lab watch DIR ...")
    return found


def line_of(run: Path, score: str) -> list[str]:
    """The row of a run; its loss over time is drawn with 16 bars."""
    lines = read_metrics(run)
    steps, losses = curve(lines, "loss")
    names = [name for line in lines for name in line if name.startswith(HELD)]
    name = HELD + score if score else next((n for n in names if n != HELD + "loss"), HELD + "loss")
    values = curve(lines, name)[1]
    best = min(values, key=lambda value: rank(name.removeprefix(HELD), value), default="-")
    rates = curve(lines, "steps_per_second")[1]
    last = [short(found[-1]) if found else "-" for found in (steps, losses, values, rates)]
    label = f"{name.removeprefix(HELD)} {last[2]}"
    return [run.name, last[0], last[1], label, short(best), last[3], bars(losses)]


def bars(values: list[float], count: int = 16) -> str:
    """A curve as characters of eight heights: the means of `count` parts of the values."""
    parts = [
        values[len(values) * i // count : len(values) * (i + 1) // count] for i in range(count)
    ]
    means = [sum(part) / len(part) for part in parts if part]
    if not means:
        return ""
    low, high = min(means), max(means)
    return "".join(LEVELS[round(7 * (x - low) / ((high - low) or 1))] for x in means)


def page(runs: list[Path], seconds: int) -> str:
    """A page with a chart of each metric that some run has, a curve a run."""
    lines = {run.name: read_metrics(run) for run in runs}
    every = [name for some in lines.values() for line in some for name in line]
    names = ["loss", *dict.fromkeys(name for name in every if name.startswith(HELD))]
    figures = []
    for name in names:
        curves = {run: curve(some, name) for run, some in lines.items()}
        curves = {run: found for run, found in curves.items() if found[0]}
        figures.append(document.chart(name.replace("/", " "), curves))
    table = document.table(HEADER[:-1], [line_of(run, "")[:-1] for run in runs])
    return document.document("Runs", [table, document.charts(filter(None, figures))], seconds)
