"""The learning curves of a sweep, and figures as files."""

import io
from pathlib import Path

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


def plain(text: str) -> str:
    """A name as a figure can show it: at most 60 characters, no formula, no leading "_"."""
    text = "".join(char if char.isprintable() else " " for char in text)
    text = text if len(text) <= 60 else f"{text[:59]}…"
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def save(figure: Figure, path: Path) -> bytes:
    """Writes the figure as PATH.png and PATH.svg, and returns the SVG's bytes."""
    written = {}
    for kind in ("png", "svg"):
        file = io.BytesIO()
        figure.savefig(file, format=kind, dpi=150)
        written[kind] = file.getvalue()
        write_atomically(path.with_name(f"{path.name}.{kind}"), written[kind])
    return written["svg"]
