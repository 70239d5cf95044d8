"""The results of a sweep, read from its runs' directories; runs that differ in seeds form a row."""

import dataclasses
import functools
import math
import statistics
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_lab import models
from transformer_lab.errors import LabError, fits, read_json, shown
from transformer_lab.sweeps.experiment import NAME
from transformer_lab.sweeps.runner import SWEEP
from transformer_lab.sweeps.states import FAILED, FINISHED, SETTINGS, failure, state_of
from transformer_lab.training.config import resolve
from transformer_lab.training.results import RESULTS
from transformer_lab.training.writers import number, read_metrics
from transformer_lab.viewing import document

PLAN = {  # what sweep.json must hold
    "experiment": str,
    "scale": str,
    "metric": str,
    "higher_is_better": bool | None,
    "columns": list[str],
    "paper": dict,
    "compares": dict[str, str],
    "base": dict[str, str],
    "also": list[str],
    "tuned": str,
    "doc": str,
    "runs": list[dict[str, str]],
}
PAPER = {  # what its "paper" must hold, unless it is empty
    "source": str,
    "columns": list[str],
    "higher_is_better": bool,
    "scale": str,
    "rows": dict[str, list[float | None]],
    "labels": dict[str, str],
}
COSTS = {  # keys of results.json, and their columns' names
    "parameters": "parameters",
    "trainable_parameters": "trained",
    "optimizer_bytes": "optimizer bytes",
    "saved_bytes": "saved bytes",
    "flops_per_token": "FLOPs a token",
    "seconds": "seconds",
    "step_seconds": "seconds a step",
}


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one run; `values` are those of results.json, {} before it is finished."""

    name: str
    directory: Path
    state: str
    error: str
    values: dict[str, Any]

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """The steps and values of a metric over the run; `key` is its name in metrics.jsonl."""
        lines = read_metrics(self.directory)
        points = [(x["step"], float(x[key])) for x in lines if fits(x.get(key), float)]
        return [step for step, _ in points], [value for _, value in points]


@dataclasses.dataclass(frozen=True)
class Row:
    """Runs that differ only in their seeds; keys are those of results.json, such as "test/loss"."""

    name: str
    runs: tuple[Result, ...]
    chosen: str = ""  # of a tuned row, which value won

    @property
    def finished(self) -> list[Result]:
        return [run for run in self.runs if run.state == FINISHED]

    def numbers(self, key: str) -> list[float]:
        """The values of a score in the finished runs that have it."""
        return [float(run.values[key]) for run in self.finished if key in run.values]

    def by_seed(self, key: str) -> dict[str, float]:
        """The finite values of a score by the seed that the run's name ends with, or by ""."""
        found = {run.name.partition("seed=")[2]: run.values.get(key) for run in self.finished}
        return {seed: x for seed, x in found.items() if x is not None and math.isfinite(x)}

    def mean(self, key: str) -> float:
        """The mean of a score over the finished runs, NaN if there is none."""
        found = self.numbers(key)
        if not all(map(math.isfinite, found)):
            return sum(found)
        return statistics.fmean(found) if found else math.nan

    def deviation(self, key: str) -> float:
        """The sample deviation (with n - 1) of a score; NaN for fewer than two finite values."""
        found = self.numbers(key)
        if len(found) < 2 or not all(map(math.isfinite, found)):
            return math.nan
        return statistics.stdev(found)


@dataclasses.dataclass(frozen=True)
class Table:
    """A sweep: its plan (the content of sweep.json), and its rows."""

    workdir: Path
    plan: dict[str, Any]
    rows: tuple[Row, ...]
    every_row: tuple[Row, ...] = ()  # with those of tuned rows that did not win

    def _repr_html_(self) -> str:
        from transformer_lab.sweeps.report import results_grid  # which reads this file

        return document.table(*results_grid(self))

    @functools.cached_property
    def best(self) -> str | None:
        """The row that is best on the validation split, among those with all seeds finished."""
        if self.plan["higher_is_better"] is None:
            return None
        key, sign = f"validation/{self.plan['metric']}", 1 if self.plan["higher_is_better"] else -1
        whole = [row for row in self.rows if len(row.numbers(key)) == len(row.runs)]
        whole = [row for row in whole if math.isfinite(row.mean(key))]
        return max(whole, key=lambda row: sign * row.mean(key)).name if whole else None

    def in_state(self, failed: bool) -> list[Result]:
        """The runs that failed, or those that are missing for another reason."""
        runs = (run for row in self.rows for run in row.runs if run.state != FINISHED)
        return [run for run in runs if (run.state == FAILED) == failed]


def read_table(workdir: Path) -> Table:
    """The sweep in a directory, with the results so far, or in the file of a `summary`.

    Raises: LabError if there is none.
    """
    if workdir.is_file():
        content = read_json(workdir)
        plan = _checked(f"{workdir}: plan.", content.get("plan", {}))
        values = {name: run["values"] for name, run in content.get("runs", {}).items()}
        states = {name: FINISHED for name in values}
        return _table(workdir, plan, lambda name: Result(
            name, workdir, states.get(name, "not in the summary"), "", values.get(name, {})
        ))  # fmt: skip
    if not (workdir / SWEEP).exists():
        raise LabError(f"{workdir} holds no sweep (no {SWEEP}): is it the --workdir of a sweep?")
    plan = read_plan(workdir / SWEEP)
    scores = set(score_keys(plan))
    return _table(workdir, plan, lambda name: _result(name, workdir / name, scores))


def _table(workdir: Path, plan: dict[str, Any], result: Callable[[str], Result]) -> Table:
    rows: dict[str, list[Result]] = {}
    for run in plan["runs"]:
        rows.setdefault(run["row"], []).append(result(run["name"]))
    every = tuple(Row(name, tuple(runs)) for name, runs in rows.items())
    return Table(workdir, plan, _tuned(plan, every), every)


def _tuned(plan: dict[str, Any], rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The rows; of those that differ in the setting plan["tuned"] alone the one that is best on
    the validation split, by the name that they share."""
    if not plan["tuned"]:
        return rows
    key, sign = f"validation/{plan['metric']}", 1 if plan["higher_is_better"] else -1
    trials: dict[str, list[Row]] = {}
    for row in rows:
        trials.setdefault(row.name.partition(f",{plan['tuned']}=")[0], []).append(row)
    found = []
    for name, tried in trials.items():
        done = [row for row in tried if math.isfinite(row.mean(key))]
        best = max(done or tried[:1], key=lambda row: sign * row.mean(key))
        chosen = f"{best.name.removeprefix(name + ',')}, of {len(done)} values"
        found.append(Row(name, best.runs, chosen if len(done) > 1 else ""))
    return tuple(found)


def read_plan(path: Path) -> dict[str, Any]:
    """The content of sweep.json. Raises: LabError that names a key that is missing or mistyped."""
    return _checked(f"{path}: ", read_json(path))


def _checked(where: str, plan: dict[str, Any]) -> dict[str, Any]:
    _check(where, plan, PLAN)
    if plan["paper"]:
        _check(f"{where}paper.", plan["paper"], PAPER)
    for run in plan["runs"]:
        if not run.keys() >= {"name", "row"} or not NAME.fullmatch(run["name"]):
            raise LabError(f"{where}runs: {shown(run)} has no row, or no name for a directory")
    return plan


def _check(where: str, values: dict[str, Any], hints: dict[str, Any]) -> None:
    for key, hint in hints.items():
        if not fits(values.get(key), hint):
            needed = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else hint
            raise LabError(f"{where}{key} = {shown(values.get(key))}: it must be {needed}")


def score_keys(plan: dict[str, Any]) -> list[str]:
    """The keys of results.json that a sweep's table shows: validation's metric, then test's."""
    metrics = [plan["metric"], *plan["columns"]]
    return [f"validation/{plan['metric']}", *(f"test/{metric}" for metric in metrics)]


def _result(name: str, directory: Path, scores: set[str]) -> Result:
    state = state_of(directory)
    if state != FINISHED:
        return Result(name, directory, state, failure(directory), {})
    file = directory / RESULTS
    values = {key: number(value) for key, value in read_json(file).items() if value is not None}
    for key in sorted(values.keys() & {*scores, *COSTS, "steps_per_second", "step", "vocab_size"}):
        if not fits(values[key], int if key == "vocab_size" else float):
            raise LabError(f"{file}: {key} = {shown(values[key])}: it must be a number")
    if rate := values.get("steps_per_second"):
        values["step_seconds"] = 1 / rate
    config = directory / "config.json"
    if config.exists():  # a measurement has none
        try:
            values |= _facts(read_json(config), values)
        except LabError as error:
            raise LabError(f"{config}: {error}") from None
    return Result(name, directory, state, "", values)


def _facts(config: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The source of the data; for batches of one length the tokens that were trained on, and the
    training FLOPs a token of a family that states its costs."""
    resolved = resolve(ConfigDict(config))
    data, batch = (resolved.sections.get(name) for name in ("data", "batch"))
    found = {"data": source} if (source := getattr(data, "source", "")) else {}
    rows, length = getattr(batch, "rows", None), getattr(batch, "length", None)
    if rows and length and "step" in values:
        found["tokens"] = values["step"] * rows * length
    training_flops = models.said(resolved.model, "training_flops")
    if training_flops and length and (vocab_size := values.get("vocab_size")):
        model = dataclasses.replace(resolved.model, vocab_size=vocab_size)
        found["flops_per_token"] = training_flops(model, length)
    return found


def summary(table: Table) -> dict[str, Any]:
    """What `read_table` needs of a sweep to make its tables again: the plan, the scores and costs
    of the finished runs, and the settings of all runs, those that differ apart."""
    runs = {name: run for row in table.every_row for run in row.finished if (name := run.name)}
    kept = {*score_keys(table.plan), *COSTS, "step", "tokens", "data"}
    settings = {name: read_json(run.directory / SETTINGS) for name, run in runs.items()}
    first = next(iter(settings.values()), {})
    common = {k: v for k, v in first.items() if all(x.get(k) == v for x in settings.values())}
    return {
        "plan": table.plan | {"doc": ""},
        "settings": common,
        "runs": {
            name: {
                "values": {key: run.values[key] for key in sorted(kept & run.values.keys())},
                "settings": {k: v for k, v in settings[name].items() if k not in common},
            }
            for name, run in runs.items()
        },
    }
