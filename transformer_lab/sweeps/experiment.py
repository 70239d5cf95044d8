"""An experiment: a file that says which runs answer a question, and what their table shows."""

import copy
import dataclasses
import functools
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from transformer_lab.errors import LabError, line_of, nearest
from transformer_lab.kinds import check_shipped
from transformer_lab.sweeps.papers import Published
from transformer_lab.sweeps.variations import FLAGS, Variation
from transformer_lab.training.config import Resolved, flatten, resolve

NAME = re.compile(r"(?![_.,-])[\w.,=+-]{1,120}")  # safe in a path and in a shell


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What `get_experiment(scale)` of a file in `experiments/` returns; scale is "cpu" or "paper".

    Scores have the names of results.json, without the split. The best row of the table is the one
    with the best `metric` on the validation split.
    """

    config: str  # the base, FILE or FILE:ARG; "" where `measure` takes the place of training
    variations: list[Variation]
    metric: str = "loss"
    higher_is_better: bool | None = False  # None: neither, a verdict says "more" or "less"
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)  # applied to all runs
    columns: tuple[str, ...] = ()  # other scores of the test split to show; (): the task's `SHOWN`
    paper: Published | None = None  # the published table, whose figures stand beside ours
    paper_rows: dict[str, str] = dataclasses.field(default_factory=dict)  # our row -> the paper's
    # A column of the paper -> the score of ours that it is compared with, if not `metric`
    compares: dict[str, str] = dataclasses.field(default_factory=dict)
    base: str | dict[str, str] = ""  # the row that the others are compared with, or one for each
    also: tuple[str, ...] = ()  # columns that get a verdict as well
    # A setting that the rows' names end with, such as "learning_rate": of the rows that differ in
    # it alone the table shows the one that is best on the validation split
    tuned: str = ""
    needs_init_from: bool = False  # whether the command must say --init_from
    plot: Callable[[Any], Any] | None = None  # makes a matplotlib Figure of a `results.Table`
    # Gives the scores for a variation's changes, in place of training; no row is the best then
    measure: Callable[[dict[str, Any]], dict[str, float]] | None = None
    doc: str = ""  # the file's docstring

    def bases(self) -> dict[str, str]:
        """The base of each row that has one. Raises: LabError for a base that is no row."""
        short = lambda row: row.partition(f",{self.tuned}=")[0] if self.tuned else row  # noqa: E731
        rows = list(dict.fromkeys(short(variation.row) for variation in self.variations))
        found = self.base if isinstance(self.base, dict) else dict.fromkeys(rows, self.base)
        for row in {*found, *found.values(), *self.paper_rows} - {*rows, ""}:
            raise LabError(f'"{row}" is no row of the experiment{nearest(row, rows)}')
        return {row: base for row, base in found.items() if base and base != row}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: its command line for `train`, without --workdir (a measurement has none)."""

    name: str
    row: str
    arguments: tuple[str, ...]
    settings: dict[str, Any]  # the flat config that they make, and the other flags
    resolved: Resolved | None = None  # the config as dataclasses


def load(path: str, scale: str) -> Experiment:
    """Reads the experiment defined in a Python file, at scale "cpu" or "paper". Raises: LabError if
    the file defines none, or if its code fails."""
    module = load_module(path)
    if not hasattr(module, "get_experiment"):
        raise LabError(f"{path} has no get_experiment(scale): it is no experiment")
    found = _guarded(path, module.get_experiment, scale)
    if not isinstance(found, Experiment):
        raise LabError(f"{path}: get_experiment returns {found!r:.60}: it must be an Experiment")
    return dataclasses.replace(found, doc=(module.__doc__ or "").strip())


def load_module(path: str, folder: str = "experiments") -> ModuleType:
    """Executes a Python file and returns it as a module; a bare name is that of a file in the
    package's folder."""
    path = str(check_shipped(folder, path))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    _guarded(path, spec.loader.exec_module, module)
    return module


def _guarded(path: str, call: Callable[..., Any], *args: Any) -> Any:
    """Calls a user's code; an error in it becomes a LabError with the file and line."""
    try:
        return call(*args)
    except LabError:
        raise
    except Exception as error:
        raise LabError(f"{line_of(error, path)}{type(error).__name__}: {error}") from error


def runs_of(experiment: Experiment, init_from: str = "") -> list[Run]:
    """The runs of an experiment, in the order of its variations.

    Raises: LabError for a key that the config lacks, an impossible config, or two equal names.
    """
    if not experiment.variations:
        raise LabError("the experiment has no variations: there is nothing to run")
    if experiment.needs_init_from and not init_from:
        raise LabError("this experiment starts from a trained model: --init_from=DIR or hf:DIR")
    common = dict.fromkeys(FLAGS, "") | {"config": experiment.config, "init_from": init_from}
    common |= experiment.changes
    taken: dict[str, Variation] = {}
    for variation in experiment.variations:
        name = variation.name
        if not NAME.fullmatch(name):
            raise LabError(f'"{name}" is no name for a directory: name the values in a mapping')
        if other := taken.get(name.casefold()):  # which some file systems do not tell apart
            raise LabError(
                f'two runs have one name, "{other.name}" ({_show(other)}) and "{name}" '
                f"({_show(variation)}): name one of them otherwise"
            )
        taken[name.casefold()] = variation
    if experiment.measure:
        start = {"init_from": init_from} if init_from else {}
        return [
            Run(v.name, v.row, (), start | experiment.changes | v.changes)
            for v in experiment.variations
        ]
    read = functools.cache(_load_config)  # once for all seeds: some config files are slow
    return [_run(v.name, v.row, common | v.changes, read) for v in experiment.variations]


def _run(name: str, row: str, values: dict[str, Any], read: Callable[[str], ConfigDict]) -> Run:
    """The run with these values of flags and config keys; `read` gives the config of a file."""
    flags = {flag: values.pop(flag) for flag in FLAGS}
    try:
        config = copy.deepcopy(read(flags["config"]))
        arguments = [f"--{flag}={value}" for flag, value in flags.items() if value]
        for key, value in values.items():
            _change(config, key, value)
            arguments.append(f"--config.{key}={_text(key, value)}")
        resolved = resolve(config)
    except LabError as error:
        raise LabError(f"run {name}: {error}") from error
    return Run(name, row, tuple(arguments), {**flatten(config), **flags}, resolved)


def _load_config(reference: str) -> ConfigDict:
    path, _, argument = reference.partition(":")
    module = load_module(path, "configs")
    arguments = [argument] if argument else []
    config = _guarded(path, lambda: module.get_config(*arguments))
    if not isinstance(config, ConfigDict):
        raise LabError(f"{path}: get_config returns {config!r:.60}: it must be a ConfigDict")
    return config


def _change(config: ConfigDict, key: str, value: Any) -> None:
    known = flatten(config)
    if key not in known:
        raise LabError(f"config.{key} is not a key{nearest(key, known)}")
    try:
        config.update_from_flattened_dict({key: value})
    except (TypeError, ValueError) as error:
        raise LabError(f"config.{key} = {value!r}: {error}") from error


def _text(key: str, value: Any) -> str:
    if value is None:
        raise LabError(f"config.{key} = None cannot be said on a command line: leave it out")
    return str(tuple(value) if isinstance(value, list) else value)


def _show(variation: Variation) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in variation.changes.items())
