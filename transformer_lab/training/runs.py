"""A run on disk: its directory, its stored config, and how it is opened, resumed and finished."""

import hashlib
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_lab import tasks
from transformer_lab.errors import LabError, read_json
from transformer_lab.ops.losses import STATISTICS
from transformer_lab.tasks.base import Params, Task
from transformer_lab.terminal import Waiting
from transformer_lab.training.adapting import pack
from transformer_lab.training.checkpoint import Checkpoints, Saved
from transformer_lab.training.chips import refuse_too_large
from transformer_lab.training.config import (
    FREE_ON_RESUME,
    Resolved,
    default_config,
    flatten,
    renamed,
    resolve,
)
from transformer_lab.training.lock import locked
from transformer_lab.training.loop import describe, same_data, train
from transformer_lab.training.mesh import make_mesh, rows_multiple, used_mesh
from transformer_lab.training.peers import code_version, refuse_differences, refuse_unshared
from transformer_lab.training.places import place, refuse_impossible, write_json
from transformer_lab.training.results import RESULTS, finish
from transformer_lab.training.sources import (
    show_differences,
    source_of,
    take,
    take_frozen,
    task_from,
    with_model,
)
from transformer_lab.training.state import TrainState
from transformer_lab.training.trainer import Trainer
from transformer_lab.training.writers import log, make_workdir

CONFIG = "config.json"
START = "start"  # the parameters of step 0, of a task that needs them later on
# Settings that decide what a checkpoint's weights mean; how far a token looks back does not.
WEIGHS = r"(model\.(?!(segment|memory|recall|recall_length)$)|tokenizer\.|adapt\.)"


def run(
    config: ConfigDict,
    workdir: Path,
    init_from: str = "",
    init_pattern: str = ".*",
    init_into: str = "",
    profile: int = 0,
) -> Task:
    """Trains the config's run in a directory, new or resumed, scores the finished model, and
    returns its task.

    A new one starts from the weights of `init_from` whose paths match the pattern; if `init_into`
    names a part of the model, they are the weights of that part. `profile` steps are traced.
    """
    resolve(config)  # refuses what is impossible before anything is made
    told = {f"config.{key}": value for key, value in flatten(config).items()}
    told |= {"--init_from": init_from, "--init_pattern": init_pattern, "--init_into": init_into}
    refuse_differences(lambda: code_version() | told)
    workdir = make_workdir(workdir)
    refuse_impossible(workdir, profile)
    with locked(workdir, log):
        refuse_unshared(workdir)
        with Run(config, workdir, init_from, init_into, training=True) as opened:
            _train(opened, init_pattern, profile)
            return opened.trainer.task


def _train(opened: "Run", pattern: str, profile: int) -> None:
    """Trains an opened run to its end, in a directory that this process has locked."""
    trainer, workdir, saved = opened.trainer, opened.workdir, opened.saved
    refuse_differences(lambda: _content(trainer.task))
    if saved and saved.step > trainer.steps:
        raise LabError(
            f"{workdir} is at step {saved.step}, beyond the {trainer.steps} asked for: raise "
            "config.steps, or use another --workdir"
        )
    position = same_data(saved, trainer.task) if saved else None
    _refuse_parted_statistics(trainer, opened.previous)
    describe(trainer)
    state = opened.state(pattern)
    stored = opened.config.to_dict()
    _begin(opened, state)
    if jax.process_index() == 0:
        (workdir / RESULTS).unlink(missing_ok=True)
        write_json(workdir / CONFIG, stored)
    state = train(
        trainer, state, workdir, opened.checkpoints, stored, position, opened.base, profile
    )
    finish(trainer, state, workdir, opened.checkpoints)


def _begin(opened: "Run", state: TrainState) -> None:
    """Gives the task the parameters of step 0, which the directory `start` keeps if it asks so."""
    trainer, task = opened.trainer, opened.trainer.task
    if opened.saved and not task.keeps_start:
        return
    with Checkpoints(opened.workdir / START, 1, log) as kept:
        if not opened.saved:
            first = trainer.canonical(state)
            if task.keeps_start:
                alone = first.replace(opt_state=first.step)
                kept.save(0, alone, {}, opened.config.to_dict(), {}, opened.base)
        elif kept.newest(1):
            params = kept.restore_params(0, trainer.state_shardings.params)
            first = TrainState(0, params, None, state.frozen)
        else:
            raise LabError(f"{kept.root} is gone or damaged: the run needs it to be resumed")
    task.begin(trainer.whole(first), trainer.place)


class Run:
    """A run's directory, opened either to train the run or to use it.

    Opening goes config -> newest good checkpoint -> what it starts from -> model -> task with its
    trainer; `state` then fills in the arrays. It is closed by `with`.
    """

    def __init__(
        self,
        config: ConfigDict,
        workdir: Path,
        init_from: str = "",
        init_into: str = "",
        average: int = 0,
        training: bool = False,
    ):
        """Opens the run; `init_from` is a new run's start, or where an adapted run's base is now.

        Raises: LabError for a directory that holds nothing to use, or another config's run.
        """
        resolved = resolve(config)
        self.config, self.workdir, self.training, self.into = config, workdir, training, init_into
        best = "" if average else resolved.run.best
        self.checkpoints = Checkpoints(workdir, resolved.run.keep, log, best)
        try:
            self.saved = self._newest()
            self.previous = self.saved.config if self.saved else _read_config(workdir)
            if not training:
                refuse_changes(self.previous, config.to_dict(), workdir, WEIGHS)
                self.steps = self._scored(average or resolved.run.average, average)
            self.source = source_of(resolved, self.saved, init_from, init_into)
            if training and resolved.run.model_from_init:
                self.config = with_model(config, self.previous, self.source)
                resolved = resolve(self.config)
            if training and self.previous is not None:
                refuse_changes(self.previous, self.config.to_dict(), workdir)
            mesh = make_mesh(resolved.run.mesh) if training else mesh_to_use(resolved)
            with Waiting("reads the data and makes the task"):
                build = partial(build_task, resolved, mesh=mesh)
                task, self.taken = task_from(self.source, self.saved, build)
            settings = resolved.run
            if not training and self.saved:  # a run in use needs no data to count its epochs
                settings = replace(settings, epochs=None, steps=self.saved.step)
            self.trainer = Trainer(settings, task, mesh)
            self.base = self.saved.base if self.saved else None
        except BaseException:
            self.checkpoints.close()
            raise

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: Any) -> None:
        self.checkpoints.close()

    def state(self, pattern: str = ".*") -> TrainState:
        """The arrays on the devices: restored, or new ones with those of the source that match.

        To be used and not trained, the parameters are the mean of the steps that represent the run,
        without the optimizer's state. It may be called once: the source's weights on the host are
        then freed.
        """
        trainer, saved, (source, self.source) = self.trainer, self.saved, (self.source, None)
        if not saved:
            refuse_too_large(trainer.step_state)
            if not source:
                return trainer.init()
            show_differences(source.model, self.config.to_dict()["model"])
            state, self.base = take(trainer, source, self.taken.format(pattern), self.into)
            return state
        if self.training:
            log(f"resumes at step {saved.step} of {trainer.steps} in {self.workdir}")
            state = self.checkpoints.restore(saved.step, trainer.abstract_state)
        else:
            shardings = trainer.state_shardings.params
            params = self.checkpoints.average_params(self.steps, shardings)
            state = TrainState(saved.step, params, None)
        if source:
            return take_frozen(trainer, state, source, saved.base)
        return trainer.stack(state) if self.training else state

    def _newest(self) -> Saved | None:
        """The newest good checkpoint; None for a run that is about to begin. Raises: LabError if
        all are damaged, or if there is none and the run is to be used."""
        if good := self.checkpoints.newest(1):
            return self.checkpoints.read(good[0])
        damaged = self.checkpoints.damaged()
        if not self.training:
            what = "only damaged checkpoints" if damaged else "no checkpoint yet"
            raise LabError(f"{self.workdir} holds {what}: train it first, or bring one back")
        if damaged:
            raise LabError(
                f"every checkpoint in {self.checkpoints.root} is damaged (see above): bring one "
                "back, or move the directory away to start anew"
            )
        return None

    def _scored(self, count: int, asked: int) -> list[int]:
        """The steps whose mean represents the run. Raises: LabError if `asked` exceeds them."""
        steps = self.checkpoints.scored(count)
        if not 0 <= asked <= len(steps):
            have = f"{self.workdir} has {len(steps)} good checkpoints"
            raise LabError(f"--average={asked}, but {have}")
        return steps


def open_run(
    config: ConfigDict, workdir: Path, average: int = 0, base: str = ""
) -> tuple[Trainer, Params]:
    """A trained run on the devices that there are, with the parameters of its whole model.

    `average` > 1 takes the mean of the trained parameters of so many newest checkpoints; 0 as many
    of them as the config says and as exist. `base` is where an adapted run's base is now, if it was
    moved. With `decode.weights` the parameters are packed, and the task's model reads them so.
    """
    trainer, state = open_state(config, workdir, average, base)
    params, task = trainer.whole(state), trainer.task
    weights = config.get("decode", {}).get("weights", "float32")  # not every task decodes tokens
    if weights != "float32":
        task.model, params = pack(task.model, params, weights)
    return trainer, params


def open_state(
    config: ConfigDict, workdir: Path, average: int = 0, base: str = ""
) -> tuple[Trainer, TrainState]:
    """As `open_run`, but with trained and frozen parameters apart, without optimizer state."""
    with Run(config, workdir, base, average=average) as opened:
        return opened.trainer, opened.state()


def refuse_taken(workdir: Path, flag: str) -> None:
    """Raises: LabError for a directory that already holds a run."""
    if (workdir / CONFIG).exists() or (workdir / "checkpoints").exists():
        raise LabError(f"{flag}={workdir} holds a run already: choose another directory")


def write_new(config: ConfigDict, task: Task, mesh: Mesh, params: Params, workdir: Path) -> None:
    """Writes a run at step 0 with these parameters of the whole model. It has read no data, so its
    checkpoint holds no position in any."""
    trainer, stored = Trainer(resolve(config).run, task, mesh), config.to_dict()
    state = trainer.canonical(trainer.with_params(trainer.init(), params))
    with Checkpoints(make_workdir(workdir), 1, log) as checkpoints:
        checkpoints.save(0, state, {}, stored, task.assets())
    write_json(workdir / CONFIG, stored)


def _content(task: Task) -> dict[str, str]:
    """Digests of the data and tokenizer, which all processes of a run must have in common."""
    files = {f"the tokenizer's {name}": content for name, content in task.assets().items()}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return {"the data's fingerprint": task.fingerprint(), **digests}


def mesh_to_use(resolved: Resolved) -> Mesh:
    """The mesh of a run that is used and not trained, on the devices that there are now."""
    batch = resolved.sections.get("batch")
    rows = getattr(batch, "rows_multiple", 0) or getattr(batch, "rows", 0)
    return used_mesh(resolved.run.mesh, rows // resolved.run.micro_batches)


def build_task(resolved: Resolved, assets: dict[str, bytes] | None, mesh: Mesh) -> Task:
    """The task of a config; its data is read only when it is first used."""
    return tasks.objective(resolved.task_kind).build(
        resolved.model_kind,
        resolved.model,
        resolved.sections,
        assets=assets,
        seed=resolved.run.seed,
        rows_multiple=rows_multiple(mesh, resolved.run.micro_batches),
    )


def refuse_changes(
    previous: dict[str, Any], now: dict[str, Any], workdir: Path, keys: str = ".*"
) -> None:
    """Raises: LabError that names the first setting by which two configs are different runs.
    Settings in FREE_ON_RESUME may differ; only those whose names match `keys` are compared."""
    old, new = _with_defaults(previous), _with_defaults(now)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) == new.get(key) or re.fullmatch(FREE_ON_RESUME, key):
            continue
        if re.match(keys, key):
            raise LabError(
                f"{workdir} holds a run with config.{key} = {old.get(key)!r}, this one has "
                f"{new.get(key)!r}: set it back to resume or use it, or use another --workdir"
            )
    decays = now["optimizer"]["schedule"] in ("cosine", "linear")
    if keys != WEIGHS and decays and any(old.get(k) != new.get(k) for k in ("steps", "epochs")):
        log("steps changed: from here on the learning rate follows the new schedule")


def _refuse_parted_statistics(trainer: Trainer, previous: dict[str, Any] | None) -> None:
    """Raises: LabError if the number of micro-batches changes for a model with batch statistics.
    Means over micro-batches differ from those over the whole batch."""
    parts = (previous or {}).get("micro_batches", trainer.config.micro_batches)
    if STATISTICS in trainer.param_shapes and parts != trainer.config.micro_batches:
        raise LabError(
            f"config.micro_batches was {parts} and decides what the model's batch statistics are "
            "of: set it back to resume, or use another --workdir"
        )


def _with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """The flat config; keys that are newer than the stored config have their defaults."""
    defaults = default_config(config["model"]["kind"], config["task"]["kind"])
    return {**flatten(defaults), **flatten(config)}


def stored_config(workdir: Path) -> dict[str, Any]:
    """The config of the run in a directory, with JSON's lists as the tuples that they were."""
    workdir = place(workdir)
    config = _read_config(workdir)
    if config is None:
        raise LabError(f"{workdir} holds no run (no {CONFIG}): train one with --workdir={workdir}")
    return _with_tuples(config)


def _with_tuples(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _with_tuples(value) for key, value in values.items()}
    return tuple(values) if isinstance(values, list) else values


def _read_config(workdir: Path) -> dict[str, Any] | None:
    path = workdir / CONFIG
    return renamed(read_json(path)) if path.exists() else None
