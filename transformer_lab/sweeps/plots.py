"""The learning curves of a sweep, fans of forecasts, and figures as files."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from transformer_lab.sweeps.results import Table
from transformer_lab.training.places import write_atomically


def curves(table: Table) -> Figure:
    """Training loss and the deciding score on the validation split by step; each run is a curve."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    keys = "loss", f"validation/{table.plan['metric']}"
    for axes, key in zip(figure.subplots(1, 2), keys, strict=True):
        for i, row in enumerate(table.rows):
            label = plain(row.name)
            for run in row.runs:
                steps, values = run.curve(key)
                if steps:
                    marker = "o" if len(steps) == 1 else None
                    style = f"C{i % 10}", ("-", "--", ":", "-.")[i // 10 % 4]
                    axes.plot(steps, values, c=style[0], ls=style[1], marker=marker, label=label)
                    label = None
        axes.set(xlabel="step", title=plain(key))
    entries = figure.axes[0].get_legend_handles_labels()
    figure.legend(*entries, loc="outside right upper", fontsize="small")
    return figure


def fans(series: Sequence[Any], found: np.ndarray, levels: Sequence[float]) -> Figure:
    """The end of each series and its forecast: the median as a line, and a band from each quantile
    to its opposite, such as 0.1 to 0.9. `found` [series, steps, levels]; the first 12 are shown."""
    count = min(len(series), 12)
    columns = min(count, 3)
    figure = Figure(figsize=(4.5 * columns, 2.8 * -(-count // columns)), layout="constrained")
    axes = figure.subplots(-(-count // columns), columns, squeeze=False).ravel()
    for each, one, rows in zip(axes, series, found, strict=False):
        size = len(one.values)
        shown = range(max(size - 4 * max(len(rows), one.period), 0), size + len(rows))
        dates = one.stamps(0, size + len(rows))
        x = np.arange(size + len(rows)) if dates is None else dates
        each.plot(x[shown.start : size], one.values[shown.start :], c="black", lw=1)
        for low, high in zip(range(len(levels) // 2), reversed(range(len(levels))), strict=False):
            each.fill_between(x[size:], rows[:, low], rows[:, high], color="C0", alpha=0.2, lw=0)
        each.plot(x[size:], rows[:, list(levels).index(0.5)], c="C0")
        each.set_title(plain(one.name), fontsize="medium")
        each.tick_params(axis="x", labelrotation=30, labelsize="small")
    for each in axes[count:]:
        each.set_axis_off()
    return figure


def plain(text: str) -> str:
    """A name as a figure can show it: at most 60 characters, no formula, no leading "_"."""
    text = "".join(char if char.isprintable() else " " for char in text)
    text = text if len(text) <= 60 else f"{text[:59]}…"
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def save_alone(figure: Figure, path: Path) -> None:
    """Writes the figure as one file of the kind that its name ends with; an SVG of it is small, its
    words are text, its places have two digits, and it is the same each time."""
    if path.suffix != ".svg":
        figure.savefig(path, dpi=150)
        return
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "transformer_lab"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    cut = lambda places: re.sub(r"(\.\d\d)\d+", r"\1", places[0])  # noqa: E731
    text = re.sub(r'\b(d|x|y)="[^"]*"', cut, file.getvalue())
    path.write_text(re.sub(r"\s*\n\s*", "\n", text), encoding="utf-8")


def save(figure: Figure, path: Path) -> bytes:
    """Writes the figure as PATH.png and PATH.svg, and returns the SVG's bytes."""
    written = {}
    for kind in ("png", "svg"):
        file = io.BytesIO()
        figure.savefig(file, format=kind, dpi=150)
        written[kind] = file.getvalue()
        write_atomically(path.with_name(f"{path.name}.{kind}"), written[kind])
    return written["svg"]
