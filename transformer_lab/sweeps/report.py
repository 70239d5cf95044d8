"""The report of a sweep: its table as Markdown, CSV, LaTeX and one HTML page, with the curves."""

import base64
import csv
import html
import io
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from matplotlib.figure import Figure

from transformer_lab.sweeps import plots
from transformer_lab.sweeps.results import COSTS, Row, Table, read_table, score_keys
from transformer_lab.sweeps.verdicts import verdicts
from transformer_lab.terminal import counted, print_table
from transformer_lab.training.places import write_atomically
from transformer_lab.training.report import REPORT
from transformer_lab.training.writers import log
from transformer_lab.viewing import document

MEASURED = ("seconds", "step_seconds")  # measured costs, which differ from seed to seed
NOISE = (
    "Differences are paired by seed, with the standard error of their mean; less than two errors "
    "is called noise. Directions compare with the paper's first column that has both figures."
)
LEGEND = "Mean ± sample deviation over the seeds; * is the best on the validation split."


class Grid(NamedTuple):
    """A table whose cells are texts: the names of its columns, and its rows."""

    header: list[str]
    rows: list[list[str]]


Plot = Callable[[Table], Figure]


def write_report(workdir: Path, other: Path | None = None, plot: Plot | None = None) -> str:
    """Writes report.md, .csv, .tex and .html, and the figures; returns the Markdown.

    `other` is the directory of another sweep to compare with: it adds compare.csv, and a table to
    the reports. `plot` is the experiment's own. The file that sweep.json names is never run:
    whoever sends a directory of results must not run a program here.
    """
    table = read_table(workdir)
    grids = grids_of(table, other)
    _write(workdir / "report.csv", _csv(numbers_grid(table)))
    if other:
        _write(workdir / "compare.csv", _csv(grids[-1]))
    trained = any(run.curve("loss")[0] for row in table.rows for run in row.runs)
    figures = {"curves": plots.curves(table)} if trained else {}
    figures |= _own_plot(table, plot)
    images = {name: plots.save(figure, workdir / name) for name, figure in figures.items()}
    text = _markdown(table, grids, list(images))
    _write(workdir / "report.md", text)
    _write(workdir / "report.tex", "\n".join(_tex(grid) for grid in grids))
    _write(workdir / "report.html", _html(table, grids, images))
    return text


def grids_of(table: Table, other: Path | None) -> list[Grid]:
    """The results, the verdicts on the paper's directions if any, and a comparison if asked for."""
    grids = [results_grid(table), *([verdict_grid(table)] if verdicts(table) else [])]
    return [*grids, *([comparison(table, read_table(other))] if other else [])]


def print_report(workdir: Path, other: Path | None = None) -> None:
    """Prints a sweep's table, what is missing in it, and where its report lies."""
    table = read_table(workdir)
    for grid in grids_of(table, other):
        print_table(*grid)
    for line in notes(table):
        log(line)
    log(f"{workdir}/report.html has the curves; also report.md, .csv and .tex")


def results_grid(table: Table) -> Grid:
    """The table for readers: scores and costs by row; columns without any value are left out."""
    plan = table.plan
    known = lambda keys: [key for key in keys if any(row.numbers(key) for row in table.rows)]  # noqa: E731
    scores, costs = known(score_keys(table.plan)), known(COSTS)
    header = ["", "seeds", *(key.replace("/", " ") for key in scores)]
    paper = plan["paper"] or {"columns": [], "rows": {}}
    header += [f"paper: {column}" for column in paper["columns"]]
    rows = []
    for row in table.rows:
        cells = [row.name + (" *" if row.name == table.best else ""), _seeds(row)]
        cells += [_score(row, key) for key in scores]
        figures = paper["rows"].get(row.name) or [None] * len(paper["columns"])
        cells += ["" if x is None else f"{x:g}" for x in figures]
        rows.append(cells + [_cost(row, key) for key in costs])
    return Grid(header + [COSTS[key] for key in costs], rows)


def numbers_grid(table: Table) -> Grid:
    """The table for programs, with all digits: mean and deviation of each score and cost."""
    paper = table.plan["paper"] or {"columns": [], "rows": {}, "source": ""}
    header = ["variation", "best", "finished", "runs", "failed"]
    header += [*(f"paper: {column}" for column in paper["columns"]), "source"]
    keys = [*score_keys(table.plan), *COSTS]
    header += [f"{key} {what}" for key in keys for what in ("mean", "deviation")]
    rows = []
    for row in table.rows:
        failed = sum(run in table.in_state(failed=True) for run in row.runs)
        counts = [len(row.finished), len(row.runs), failed]
        figures = paper["rows"].get(row.name)
        cells = [row.name, int(row.name == table.best), *counts]
        cells += ["" if x is None else x for x in figures or [None] * len(paper["columns"])]
        cells.append(paper["source"] if figures else "")
        cells += [f(key) for key in keys for f in (row.mean, row.deviation)]
        rows.append(["" if x != x else str(x) for x in cells])  # NaN: nothing is known
    return Grid(header, rows)


def verdict_grid(table: Table) -> Grid:
    """Each row's difference to its base, beside the published one (see `sweeps.verdicts`)."""
    header = ["", "against", "score", "difference", "error", "paper's row", "paper's column"]
    header += ["paper's difference", "verdict"]
    labels, rows = table.plan["paper"].get("labels", {}), []
    for x in verdicts(table):
        ours = ["" if math.isnan(y) else f"{y:{form}}" for y, form in
                ((x.difference, "+.3g"), (x.error, ".2g"))]  # fmt: skip
        theirs = [labels.get(x.row, ""), x.column]
        theirs.append("" if x.published_difference is None else f"{x.published_difference:+.3g}")
        rows.append([x.row, x.base, x.score, *ours, *theirs, x.says])
    return Grid(header, rows)


def comparison(table: Table, other: Table) -> Grid:
    """The differences of two sweeps' mean test scores, with standard errors, for rows in both.

    The error is sqrt(s1^2 / n1 + s2^2 / n2) (Welch 1947): the runs are taken as unpaired.
    """
    there = {row.name: row for row in other.rows}
    header, rows = ["", "score", "here", f"in {other.workdir}", "difference", "error"], []
    for row in (row for row in table.rows if row.name in there):
        for key in (key for key in score_keys(table.plan) if key.startswith("test/")):
            pair = row, there[row.name]
            squares = [r.deviation(key) ** 2 / max(len(r.numbers(key)), 1) for r in pair]
            figures = [pair[0].mean(key) - pair[1].mean(key), math.sqrt(sum(squares))]
            texts = ["" if math.isnan(x) else f"{x:.3g}" for x in figures]
            rows.append([row.name, key.removeprefix("test/"), *(_score(r, key) for r in pair)])
            rows[-1] += texts
    return Grid(header, rows)


def notes(table: Table) -> list[str]:
    """The table's legend, and a line for each run that is not in the means, with the reason."""
    failed, missing = table.in_state(failed=True), table.in_state(failed=False)
    lines = [f"failed: {run.name}: {run.error}" for run in failed]
    paper, told = table.plan["paper"], [LEGEND]
    if verdicts(table):
        told.append(NOISE)
    if paper:
        told.append(f"The paper's figures: {paper['source']}; {paper['scale']}. {_scale(table)}")
    told += [f"{row.name}: {row.chosen}, was best" for row in table.rows if row.chosen]
    needed, cached = (
        int(sum(sum(row.numbers(key)) for row in table.every_row))
        for key in ("programs", "cached_programs")
    )
    if needed:
        told.append(
            f"Of {counted(needed, 'compiled program')} that the runs needed {cached:,} were there "
            "from earlier runs."
        )
    return [*told, *lines, *(f"missing: {run.name}: {run.state}" for run in missing)]


def _scale(table: Table) -> str:
    """A sentence on what the sweep's own runs had: parameters, steps and data."""
    runs, parts = [run for row in table.rows for run in row.finished], []
    for key, unit in (("parameters", "parameters"), ("step", "steps"), ("tokens", "tokens")):
        found = sorted(run.values[key] for run in runs if key in run.values)
        if found:
            ends = dict.fromkeys(f"{x:,.0f}" for x in (found[0], found[-1]))
            parts.append(f"{' to '.join(ends)} {unit}")
    data = dict.fromkeys(run.values["data"] for run in runs if "data" in run.values)
    return f"Here: {', '.join([*parts, *data]) or 'measured'}."


def _seeds(row: Row) -> str:
    done, planned = len(row.finished), len(row.runs)
    return str(done) if done == planned else f"{done} of {planned}"


def _score(row: Row, key: str) -> str:
    mean, deviation = row.mean(key), row.deviation(key)
    if not row.numbers(key):
        return ""
    return f"{mean:.4g}" + ("" if math.isnan(deviation) else f" ± {deviation:.2g}")


def _cost(row: Row, key: str) -> str:
    if not row.numbers(key):
        return ""
    return f"{row.mean(key):,.3g}" if key in MEASURED else f"{row.mean(key):,.0f}"


def _own_plot(table: Table, plot: Plot | None) -> dict[str, Figure]:
    """The experiment's own figure; if it fails, as when runs are missing, a log line says so."""
    try:
        return {"plot": plot(table)} if plot else {}
    except Exception as error:
        log(f"the experiment's own plot is left out: {error}")
        return {}


def _title(table: Table) -> str:
    return f"{Path(table.plan['experiment']).stem}, scale {table.plan['scale']}"


def _markdown(table: Table, grids: list[Grid], images: list[str]) -> str:
    escape = lambda text: re.sub(r"([|*_<`\[\\])", r"\\\1", text)  # noqa: E731
    line = lambda text: escape(" ".join(text.split()))  # noqa: E731
    parts = [f"# {line(_title(table))}", escape(table.plan["doc"])]
    for grid in grids:
        rule = [":--", *["--:"] * (len(grid.header) - 1)]
        rows = [list(map(line, grid.header)), rule, *(map(line, row) for row in grid.rows)]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    parts.append("\n".join(f"- {line(note)}" for note in notes(table)))
    return "\n\n".join(parts + [f"![{name}]({name}.png)" for name in images]) + "\n"


def _html(table: Table, grids: list[Grid], images: dict[str, bytes]) -> str:
    parts = [f"<pre>{html.escape(table.plan['doc'])}</pre>", *(document.table(*g) for g in grids)]
    parts.append(f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in notes(table))}</ul>")
    parts.append(document.section("Curves", document.charts(_charts(table))))
    if svg := images.get("plot"):
        data = base64.b64encode(svg).decode()
        parts.append(f'<img alt="plot" src="data:image/svg+xml;base64,{data}">')
    parts.append(document.section("Runs", _runs(table)))
    return document.document(_title(table), parts)


def _charts(table: Table) -> list[str]:
    """Loss and deciding score by step, a curve a row: the mean, in a band of the deviation."""
    figures = []
    for key in "loss", f"validation/{table.plan['metric']}":
        curves, bands = {}, {}
        for row in table.rows:
            by_step: dict[int, list[float]] = {}
            for run in row.runs:
                for step, value in zip(*run.curve(key), strict=True):
                    by_step.setdefault(step, []).append(value)
            steps = sorted(
                step for step, found in by_step.items() if all(map(math.isfinite, found))
            )
            steps = steps[:: -(-len(steps) // document.MOST) or 1]
            means = [statistics.fmean(by_step[step]) for step in steps]
            if steps:
                curves[row.name] = steps, means
            if len(row.runs) > 1 and steps:
                spread = [statistics.pstdev(by_step[step]) for step in steps]
                both = [*zip(means, spread, strict=True)]
                bands[row.name] = [m - s for m, s in both], [m + s for m, s in both]
        figures.append(document.chart(key.replace("/", " "), curves, bands=bands))
    return [figure for figure in figures if figure]


def _runs(table: Table) -> str:
    """Links to the reports of single runs, with the state of each."""
    found = []
    for run in (run for row in table.rows for run in row.runs):
        name = html.escape(run.name)
        if (run.directory / REPORT).exists():
            name = f'<a href="{html.escape(quote(run.name))}/{REPORT}">{name}</a>'
        found.append(f"<li>{name}: {run.state}</li>")
    return f"<ul>{''.join(found)}</ul>"


def _tex(grid: Grid) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {char: f"\\{char}" for char in "&%$#_{}"} | {"±": r"$\pm$"}
    plain = lambda text: " ".join(text.split())  # noqa: E731
    escape: Callable[[str], str] = lambda text: "".join(special.get(c, c) for c in plain(text))  # noqa: E731
    lines = [" & ".join(map(escape, cells)) + r" \\" for cells in [grid.header, *grid.rows]]
    columns = "l" + "r" * (len(grid.header) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", lines[0], r"\hline", *lines[1:]]
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def _csv(grid: Grid) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([grid.header, *grid.rows])
    return file.getvalue()


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
