"""Forecasts the series of a table: quantiles of the next steps, as CSV or JSON, and a plot.

    transformer_lab forecast --workdir=runs/forecast sales.csv --horizon=12 --output=sales

The file is wide, a date and a column for each series, or long, a row for each value with its series
and date; `--config.data.date_column` and others name the columns (see docs/forecasting.md).
`--output=NAME` writes NAME.csv or NAME.json, NAME.png and NAME.svg; without it the table is
printed.
"""

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from transformer_lab import cli
from transformer_lab.data.formats import stamped
from transformer_lab.data.series import Series
from transformer_lab.errors import LabError, check_file
from transformer_lab.sweeps import plots
from transformer_lab.tasks.abilities import Foretells
from transformer_lab.training.writers import log

WORDS = True  # arguments that are no flags


def define() -> None:
    cli.run_flags()
    flags.DEFINE_integer("horizon", 0, "Steps to predict; 0: as many as the run can.", 0)
    flags.DEFINE_string("output", "", "Where the files go: NAME.csv, NAME.png and NAME.svg.")
    flags.DEFINE_bool("json", False, "Write JSON, an object for each series, instead of CSV.")


def main(files: list[str]) -> None:
    args = flags.FLAGS
    if len(files) != 1:
        raise LabError("name one file of series: forecast FILE.csv --workdir=DIR")
    config, report = cli.get_config().data, Counter()
    series = stamped.read(check_file(files[0]), config, report)
    for what, count in report.items():
        log(f"{what}: {count}")
    trainer, params = cli.open_run()
    task = trainer.task
    if not isinstance(task, Foretells):
        raise LabError(f"a run of {cli.get_config().task.kind} forecasts no series")
    most = task.model_config.horizon
    horizon = args.horizon or most
    if horizon > most:
        raise LabError(
            f"--horizon={horizon}: the run predicts at most {most} steps; train one with "
            f"--config.model.horizon={horizon}"
        )
    levels = task.config.quantiles
    found = task.forecast(params, series, trainer.place)[:, :horizon]
    if args.json:
        lines = [json.dumps(row, ensure_ascii=False) for row in objects(series, found, levels)]
    else:
        lines = table(series, found, levels)
    if not args.output:
        sys.stdout.reconfigure(encoding="utf-8")
        print("\n".join(lines), flush=True)
        return
    target = Path(args.output)
    target.parent.mkdir(parents=True, exist_ok=True)
    kind = "jsonl" if args.json else "csv"
    target.with_name(f"{target.name}.{kind}").write_text("\n".join(lines) + "\n", "utf-8")
    plots.save(plots.fans(series, found, levels), target)


def steps(one: Series, horizon: int) -> list[str]:
    """The names of the steps after a series: their stamps, or numbers where it has none."""
    first = len(one.values)
    stamps = one.stamps(first, horizon)
    return [*map(str, range(first + 1, first + horizon + 1) if stamps is None else stamps)]


def objects(series: list[Series], found: np.ndarray, levels: Any) -> Iterator[dict[str, Any]]:
    """A dictionary for each series: its name, the dates of the steps, and the quantiles."""
    for one, rows in zip(series, found, strict=True):
        by_level = {f"{q:g}": rows[:, i].tolist() for i, q in enumerate(levels)}
        yield {"series": one.name, "date": steps(one, len(rows)), "quantiles": by_level}


def table(series: list[Series], found: np.ndarray, levels: Any) -> list[str]:
    """Lines of CSV: series, date and a column for each quantile; names are quoted as needed."""
    rows = [["series", "date", *(f"q{level:g}" for level in levels)]]
    for one, quantiles in zip(series, found, strict=True):
        for date, row in zip(steps(one, len(quantiles)), quantiles.tolist(), strict=True):
            rows.append([one.name, date, *(f"{value:.6g}" for value in row)])
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows(rows)
    return lines.getvalue().splitlines()
