"""The results of a sweep, read from its runs' directories; runs that differ in seeds form a row."""

import dataclasses
import functools
import math
import statistics
import typing
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_lab import models
from transformer_lab.errors import LabError, fits, read_json, shown
from transformer_lab.sweeps.experiment import NAME
from transformer_lab.sweeps.runner import SWEEP
from transformer_lab.sweeps.states import FAILED, FINISHED, failure, state_of
from transformer_lab.training.config import resolve
from transformer_lab.training.results import RESULTS
from transformer_lab.training.writers import number, read_metrics

PLAN = {  # what sweep.json must hold
    "experiment": str,
    "scale": str,
    "metric": str,
    "higher_is_better": bool,
    "columns": list[str],
    "paper": dict[str, float | str],
    "source": str,
    "doc": str,
    "runs": list[dict[str, str]],
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

    @property
    def finished(self) -> list[Result]:
        return [run for run in self.runs if run.state == FINISHED]

    def numbers(self, key: str) -> list[float]:
        """The values of a score in the finished runs that have it."""
        return [float(run.values[key]) for run in self.finished if key in run.values]

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

    @functools.cached_property
    def best(self) -> str | None:
        """The row that is best on the validation split, among those with all seeds finished."""
        key, sign = f"validation/{self.plan['metric']}", 1 if self.plan["higher_is_better"] else -1
        whole = [row for row in self.rows if len(row.numbers(key)) == len(row.runs)]
        whole = [row for row in whole if math.isfinite(row.mean(key))]
        return max(whole, key=lambda row: sign * row.mean(key)).name if whole else None

    def in_state(self, failed: bool) -> list[Result]:
        """The runs that failed, or those that are missing for another reason."""
        runs = (run for row in self.rows for run in row.runs if run.state != FINISHED)
        return [run for run in runs if (run.state == FAILED) == failed]


def read_table(workdir: Path) -> Table:
    """The sweep in a directory, with the results so far. Raises: LabError if there is none."""
    if not (workdir / SWEEP).exists():
        raise LabError(f"{workdir} holds no sweep (no {SWEEP}): is it the --workdir of a sweep?")
    plan = read_plan(workdir / SWEEP)
    rows: dict[str, list[Result]] = {}
    for run in plan["runs"]:
        found = _result(run["name"], workdir / run["name"], set(score_keys(plan)))
        rows.setdefault(run["row"], []).append(found)
    return Table(workdir, plan, tuple(Row(name, tuple(runs)) for name, runs in rows.items()))


def read_plan(path: Path) -> dict[str, Any]:
    """The content of sweep.json. Raises: LabError that names a key that is missing or mistyped."""
    plan = read_json(path)
    for key, hint in PLAN.items():
        if not fits(plan.get(key), hint):
            needed = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else hint
            raise LabError(f"{path}: {key} = {shown(plan.get(key))}: it must be {needed}")
    for run in plan["runs"]:
        if not run.keys() >= {"name", "row"} or not NAME.fullmatch(run["name"]):
            raise LabError(f"{path}: runs: {shown(run)} has no row, or no name for a directory")
    return plan


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
    for key in sorted(values.keys() & {*scores, *COSTS, "steps_per_second", "vocab_size"}):
        if not fits(values[key], int if key == "vocab_size" else float):
            raise LabError(f"{file}: {key} = {shown(values[key])}: it must be a number")
    if rate := values.get("steps_per_second"):
        values["step_seconds"] = 1 / rate
    config = directory / "config.json"
    if config.exists():  # a measurement has none
        try:
            values |= _flops(read_json(config), values.get("vocab_size"))
        except LabError as error:
            raise LabError(f"{config}: {error}") from None
    return Result(name, directory, state, "", values)


def _flops(config: dict[str, Any], vocab_size: int | None) -> dict[str, int]:
    """Training FLOPs a token, for batches of one length and a family that states its costs."""
    resolved = resolve(ConfigDict(config))
    length = getattr(resolved.sections.get("batch"), "length", None)
    training_flops = models.said(resolved.model, "training_flops")
    if not (training_flops and length and vocab_size):
        return {}
    model = dataclasses.replace(resolved.model, vocab_size=vocab_size)
    return {"flops_per_token": training_flops(model, length)}
