"""The results of a sweep, read from its runs' directories: rows of runs that differ in seeds."""

import dataclasses
import functools
import math
import statistics
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_lab.errors import LabError, read_json
from transformer_lab.models.costs import training_flops
from transformer_lab.sweeps.runner import SWEEP
from transformer_lab.sweeps.states import FAILED, FINISHED, failure, state_of
from transformer_lab.training.config import resolve
from transformer_lab.training.results import RESULTS
from transformer_lab.training.writers import number, read_metrics


@dataclasses.dataclass(frozen=True)
class Result:
    """One run. `values` are those of results.json, {} before it is finished."""

    name: str
    directory: Path
    state: str
    error: str
    values: dict[str, Any]

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric over the run, key as in metrics.jsonl."""
        points = [(x["step"], float(x[key])) for x in read_metrics(self.directory) if key in x]
        return [step for step, _ in points], [value for _, value in points]


@dataclasses.dataclass(frozen=True)
class Row:
    """Runs that differ in their seeds; keys are those of results.json, such as "test/loss"."""

    name: str
    runs: tuple[Result, ...]

    @property
    def finished(self) -> list[Result]:
        return [run for run in self.runs if run.state == FINISHED]

    def numbers(self, key: str) -> list[float]:
        """One of each finished run that has it."""
        return [float(run.values[key]) for run in self.finished if key in run.values]

    def mean(self, key: str) -> float:
        """NaN without a finished run."""
        found = self.numbers(key)
        return statistics.fmean(found) if found else math.nan

    def deviation(self, key: str) -> float:
        """Of a sample, with n - 1; NaN of fewer than two runs or where a number is none."""
        found = self.numbers(key)
        if len(found) < 2 or not all(map(math.isfinite, found)):
            return math.nan
        return statistics.stdev(found)


@dataclasses.dataclass(frozen=True)
class Table:
    """A sweep: what sweep.json says of it, and its rows."""

    workdir: Path
    plan: dict[str, Any]
    rows: tuple[Row, ...]

    @functools.cached_property
    def best(self) -> str | None:
        """The row that is best on the validation split, of those with every seed finished."""
        key, sign = f"validation/{self.plan['metric']}", 1 if self.plan["higher_is_better"] else -1
        whole = [row for row in self.rows if len(row.numbers(key)) == len(row.runs)]
        whole = [row for row in whole if math.isfinite(row.mean(key))]
        return max(whole, key=lambda row: sign * row.mean(key)).name if whole else None

    def in_state(self, failed: bool) -> list[Result]:
        """Failed runs, or those that are missing for another reason."""
        runs = (run for row in self.rows for run in row.runs if run.state != FINISHED)
        return [run for run in runs if (run.state == FAILED) == failed]


def read_table(workdir: Path) -> Table:
    """What stands in a sweep's directory now."""
    if not (workdir / SWEEP).exists():
        raise LabError(f"{workdir} holds no sweep (no {SWEEP}): is it the --workdir of a sweep?")
    plan = read_json(workdir / SWEEP)
    rows: dict[str, list[Result]] = {}
    for run in plan["runs"]:
        rows.setdefault(run["row"], []).append(_result(run["name"], workdir / run["name"]))
    return Table(workdir, plan, tuple(Row(name, tuple(runs)) for name, runs in rows.items()))


def _result(name: str, directory: Path) -> Result:
    state = state_of(directory)
    if state != FINISHED:
        return Result(name, directory, state, failure(directory), {})
    values = {key: number(value) for key, value in read_json(directory / RESULTS).items()}
    if rate := values.get("steps_per_second"):
        values["step_seconds"] = 1 / rate
    config = directory / "config.json"
    if config.exists():  # a measurement has none
        values |= _flops(read_json(config), values.get("vocab_size"))
    return Result(name, directory, state, "", values)


def _flops(config: dict[str, Any], vocab_size: int | None) -> dict[str, int]:
    """Of training, a token: known of decoders that read rows of one length."""
    resolved = resolve(ConfigDict(config))
    length = getattr(resolved.sections.get("batch"), "length", None)
    if resolved.model_kind != "decoder" or not (length and vocab_size):
        return {}
    model = dataclasses.replace(resolved.model, vocab_size=vocab_size)
    return {"flops_per_token": training_flops(model, length)}
