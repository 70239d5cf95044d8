"""Forecasts the series of a table: quantiles of the next steps, as CSV or JSON, and a plot.

    transformer_lab forecast --workdir=runs/forecast sales.csv --horizon=12 --output=sales

The file is wide, a date and a column for each series, or long, a row for each value with its series
and date; `--config.data.date_column`, `series_column` and `value_column` name the columns. The
table is printed, or with `--output=NAME` written to NAME.csv or NAME.jsonl, and plotted in NAME.png
and NAME.svg.
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
from transformer_lab.errors import LabError, check_file, within
from transformer_lab.sweeps import plots
from transformer_lab.tasks.abilities import Foretells
from transformer_lab.training.writers import log

WORDS = True  # arguments that are no flags


def define() -> None:
    cli.run_flags()
    flags.DEFINE_integer("horizon", 0, "Steps to predict; 0: as many as the run can.", 0)
    flags.DEFINE_string("output", "", "NAME of the files; else the table is printed.")
    flags.DEFINE_bool("json", False, "Write a JSON object for each series instead of CSV.")


def main(files: list[str]) -> None:
    args, config, report = flags.FLAGS, cli.get_config(), Counter()
    if len(files) != 1:
        raise LabError("name one file of series: forecast FILE.csv --workdir=DIR")
    trainer, params = cli.open_run(Foretells, "forecast")
    within("the run was trained for fewer steps: --horizon", args.horizon, 0, config.model.horizon)
    series = stamped.read(check_file(files[0]), config.data, report)
    for what, count in report.items():
        log(f"{what}: {count}")
    found = trainer.task.forecast(params, series, trainer.place)
    found, levels = found[:, : args.horizon or None], trainer.task.config.quantiles
    if args.json:
        lines = [json.dumps(row, ensure_ascii=False) for row in objects(series, found, levels)]
    else:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(table(series, found, levels))
        lines = text.getvalue().splitlines()
    if not args.output:
        sys.stdout.reconfigure(encoding="utf-8")
        print("\n".join(lines), flush=True)
        return
    target = Path(args.output)
    target.parent.mkdir(parents=True, exist_ok=True)
    name = f"{target.name}.{'jsonl' if args.json else 'csv'}"
    target.with_name(name).write_text("\n".join(lines) + "\n", "utf-8")
    plots.save(plots.fans(series, found, levels), target)


def dates(one: Series, horizon: int) -> list[str]:
    """The stamps of the steps after a series."""
    return list(map(str, one.stamps(len(one.values), horizon)))


def objects(series: list[Series], found: np.ndarray, levels: Any) -> Iterator[dict[str, Any]]:
    """A dictionary for each series: its name, the dates of the steps, and the quantiles."""
    for one, rows in zip(series, found, strict=True):
        by_level = {f"{level:g}": rows[:, i].tolist() for i, level in enumerate(levels)}
        yield {"series": one.name, "date": dates(one, len(rows)), "quantiles": by_level}


def table(series: list[Series], found: np.ndarray, levels: Any) -> Iterator[list[str]]:
    """Rows of text: series, date and a column for each quantile."""
    yield ["series", "date", *(f"q{level:g}" for level in levels)]
    for one, rows in zip(series, found, strict=True):
        for date, row in zip(dates(one, len(rows)), rows.tolist(), strict=True):
            yield [one.name, date, *(f"{value:.6g}" for value in row)]
