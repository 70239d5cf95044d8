"""The report of one run: a page of its curves, scores, samples, classes and settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_lab.errors import read_json
from transformer_lab.terminal import short
from transformer_lab.training.checkpoint import rank
from transformer_lab.training.config import default_config, flatten, renamed
from transformer_lab.training.places import write_atomically
from transformer_lab.training.writers import read_metrics
from transformer_lab.viewing import document

REPORT, CONFIG, RESULTS = "report.html", "config.json", "results.json"
SHOWN = "loss", "learning_rate", "grad_norm"  # curves of training, beside those of validation
SPEED = "examples_per_second", "tokens_per_second"
HELD = "validation/"
TABLES = "samples", "confusion"  # what results.json holds beside numbers


def write_report(workdir: Path) -> Path:
    """Writes report.html from a run's metrics.jsonl, config.json and, if it is finished,
    results.json; returns its path."""
    text = document.document(f"{workdir.name or workdir}", parts(workdir))
    write_atomically(workdir / REPORT, text.encode())
    return workdir / REPORT


def parts(workdir: Path) -> list[str]:
    """The sections of a run's report, as HTML."""
    lines, results = read_metrics(workdir), {}
    if (workdir / RESULTS).exists():
        results = read_json(workdir / RESULTS)
    found = [document.note(summary(lines, results))]
    if figures := curves(lines):
        found.append(document.section("Curves", document.charts(figures)))
    scores = {k: v for k, v in results.items() if k not in TABLES}
    if scores:
        rows = [(name.replace("/", " "), short(value)) for name, value in scores.items()]
        found.append(document.section("Scores and costs", document.table(("", "value"), rows)))
    if results.get("confusion"):
        found.append(
            document.section("Classes of the test split", *classes(**results["confusion"]))
        )
    if results.get("samples"):
        head = ("source", "output", "reference")[: len(results["samples"][0])]
        shown = document.table(head, results["samples"], "text")
        found.append(document.section("Samples of the test split", shown))
    config = read_json(workdir / CONFIG) if (workdir / CONFIG).exists() else {}
    if "task" in config:  # a Hugging Face directory has another config.json
        rows = changed(renamed(config))
        head = "key", "value", "default"
        body = document.table(head, rows, "text") if rows else document.note("none")
        found.append(document.section("Settings that differ from the default", body))
    return found


def summary(lines: Sequence[dict[str, Any]], results: dict[str, Any]) -> str:
    """One line: steps, time (of a run that goes on, between its lines of metrics), and speed."""
    times = [line["time"] for line in lines if isinstance(line.get("time"), float)]
    texts = [f"{max((line['step'] for line in lines), default=0):,} steps"]
    seconds = int(results.get("seconds", times[-1] - times[0] if times else 0))
    if seconds:
        texts.append(f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} with scoring")
    for name in SPEED:
        if rates := [line[name] for line in lines if name in line]:
            rate = sorted(rates)[len(rates) // 2]
            texts.append(f"{short(rate)} {name.split('_')[0]} a second")
    texts.append("finished" if results else "not finished")
    return ", ".join(texts)


def curve(lines: Sequence[dict[str, Any]], name: str) -> document.Curve:
    """The steps and values of a metric."""
    both = [(x["step"], x[name]) for x in lines if isinstance(x.get(name), int | float)]
    return [step for step, _ in both], [value for _, value in both]


def curves(lines: Sequence[dict[str, Any]]) -> list[str]:
    """A chart of each curve of training and validation; the best step of a score is circled."""
    held = dict.fromkeys(name for line in lines for name in line if name.startswith(HELD))
    figures = []
    loss = {"training": curve(lines, "loss")}
    if "validation/loss" in held:
        loss["validation"] = curve(lines, "validation/loss")
    figures.append(document.chart("loss", loss, best(*loss.get("validation", ((), ())), "loss")))
    for name in [*held, *SHOWN[1:]]:
        steps, values = curve(lines, name)
        score = name.removeprefix(HELD)
        if score in ("loss", "num_examples") or len(values) < 2:
            continue
        marks = best(steps, values, score) if name in held else ()
        title = name.replace("/", " ") + (f", best at step {marks[0][0]:,}" if marks else "")
        figures.append(document.chart(title, {name: (steps, values)}, marks))
    return [figure for figure in figures if figure]


def best(steps: Sequence[int], values: Sequence[float], score: str) -> list[tuple[int, float]]:
    """The point at which a score of the validation split is best, in a list; [] without any."""
    both = [*zip(steps, values, strict=True)]
    return [min(both, key=lambda point: rank(score, point[1]))] if both else []


def changed(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The keys whose value is not the default of the config's model and task, with both values."""
    standard = flatten(default_config(config["model"]["kind"], config["task"]["kind"]))
    return [
        (key, str(value), str(standard.get(key)))
        for key, value in flatten(config).items()
        if value != standard.get(key)
    ]


def classes(labels: list[str], counts: list[list[int]]) -> list[str]:
    """Tables of the classes: precision, recall, F1 and, of up to 20 classes, how many examples of
    each true class (a row) were taken for each class (a column)."""
    sums = [sum(row[i] for row in counts) for i in range(len(labels))]
    rows = []
    for i, label in enumerate(labels):
        right, true = counts[i][i], sum(counts[i])
        precision, recall = right / max(sums[i], 1), right / max(true, 1)
        f1 = 2 * right / max(true + sums[i], 1)
        rows.append((label, true, *(f"{x:.4f}" for x in (precision, recall, f1))))
    found = [document.table(("class", "examples", "precision", "recall", "F1"), rows)]
    if len(labels) <= 20:
        head = "true \\ predicted", *labels
        body = [(label, *row) for label, row in zip(labels, counts, strict=True)]
        found += ["<br>", document.table(head, body)]
    return found


def shown(workdir: Path) -> str:
    """A run's report as a part of a notebook, in a frame of its own."""
    return document.Page(document.document(workdir.name, parts(workdir)))._repr_html_()
