"""A run on disk: its directory, its stored config, and how it is opened again."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_lab import tasks
from transformer_lab.errors import LabError, read_json
from transformer_lab.ops.losses import STATISTICS
from transformer_lab.tasks.base import Params, Scores, Task
from transformer_lab.training.checkpoint import Checkpoints, Saved, write_atomically
from transformer_lab.training.chips import refuse_too_large
from transformer_lab.training.config import (
    COMPUTED,
    FREE_ON_RESUME,
    Resolved,
    default_config,
    flatten,
    renamed,
    resolve,
)
from transformer_lab.training.lock import locked
from transformer_lab.training.loop import describe, final_scores, same_data, train
from transformer_lab.training.mesh import make_mesh, rows_multiple, used_mesh
from transformer_lab.training.peers import refuse_differences, refuse_unshared
from transformer_lab.training.places import place, refuse_impossible
from transformer_lab.training.results import RESULTS, write_results
from transformer_lab.training.sources import (
    Source,
    open_source,
    reopen_base,
    take,
    take_frozen,
    within,
)
from transformer_lab.training.state import TrainState
from transformer_lab.training.trainer import Trainer
from transformer_lab.training.version import code_version
from transformer_lab.training.writers import (
    MetricWriter,
    log,
    make_workdir,
    show_samples,
)

CONFIG = "config.json"
# Settings of a model that a run sets itself when it takes the others from --init_from.
OWN = re.compile(
    r"kind|head|labels|classes|.*dropout|drop_path|adapter_width|dtype|attention_implementation|"
    r"scan_layers|remat"
)


def run(
    config: ConfigDict,
    workdir: Path,
    init_from: str = "",
    init_pattern: str = ".*",
    init_into: str = "",
    profile: int = 0,
) -> None:
    """Trains the config's run in a directory, new or resumed, and scores the finished model.

    A new one starts from the weights of `init_from` whose paths match; as the part of the model
    that stands at `init_into`, if that is named. So many steps as `profile` says are traced.
    """
    resolve(config)  # refuses what is impossible before anything is made
    told = {f"config.{key}": value for key, value in flatten(config).items()}
    told |= {"--init_from": init_from, "--init_pattern": init_pattern, "--init_into": init_into}
    refuse_differences(lambda: code_version() | told)
    workdir = make_workdir(workdir)
    refuse_impossible(workdir, profile)
    with locked(workdir, log):
        refuse_unshared(workdir)
        _run(config, workdir, init_from, init_pattern, init_into, profile)


def _run(
    config: ConfigDict,
    workdir: Path,
    init_from: str,
    init_pattern: str,
    init_into: str,
    profile: int,
) -> None:
    """The same in a directory that nobody else writes."""
    resolved, stored = resolve(config), config.to_dict()
    checkpoints = Checkpoints(workdir, resolved.run.keep, log, resolved.run.best)
    try:
        saved = _newest(checkpoints)
        if saved is None and checkpoints.damaged():
            raise LabError(
                f"every checkpoint in {checkpoints.root} is damaged (see above): bring one back, "
                "or move the directory away to start anew"
            )
        previous = saved.config if saved else _read_config(workdir)
        source = _source(resolved, saved, init_from, init_into)
        if resolved.run.model_from_init:
            config = _with_model(config, previous, source)
            resolved, stored = resolve(config), config.to_dict()
        if previous is not None:
            refuse_changes(previous, stored, workdir)
        assets = saved.assets if saved else source.assets if source else None
        mesh = make_mesh(resolved.run.mesh)
        trainer = Trainer(resolved.run, build_task(resolved, assets, mesh), mesh)
        refuse_differences(lambda: _content(trainer.task))
        if saved and saved.step > trainer.steps:
            raise LabError(
                f"{workdir} is at step {saved.step}, beyond the {trainer.steps} asked for: raise "
                "config.steps, or use another --workdir"
            )
        position = same_data(saved, trainer.task) if saved else None
        _refuse_parted_statistics(trainer, previous)
        describe(trainer)
        base = saved.base if saved else None
        if saved:
            log(f"resumes at step {saved.step} of {trainer.steps} in {workdir}")
            state = checkpoints.restore(saved.step, trainer.abstract_state)
            state = take_frozen(trainer, state, source, base) if source else trainer.stack(state)
        else:
            refuse_too_large(trainer.step_state)
            state = trainer.init()
            if source:
                _show_differences(source.model, stored["model"])
                state, base = take(trainer, state, source, init_pattern, init_into)
        source = None  # all its weights, on the host
        if jax.process_index() == 0:
            (workdir / RESULTS).unlink(missing_ok=True)
            write_atomically(workdir / CONFIG, json.dumps(stored, indent=1).encode())
        state = train(trainer, state, workdir, checkpoints, stored, position, base, profile)
        _finish(trainer, state, workdir, checkpoints)
    finally:
        checkpoints.close()


def _content(task: Task) -> dict[str, str]:
    """What the processes of a run must have in common beside their config."""
    files = {f"the tokenizer's {name}": content for name, content in task.assets().items()}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return {"the data's fingerprint": task.fingerprint(), **digests}


def _source(resolved: Resolved, saved: Saved | None, init_from: str, into: str) -> Source | None:
    """What a new run starts from; of a resumed one only what its checkpoints do not hold."""
    if saved:
        return reopen_base(saved.base, init_from) if saved.base else None
    method = resolved.run.adapt.method
    if method != "full" and not init_from:
        raise LabError(
            f'adapt.method = "{method}" adapts a trained model: say which by --init_from'
        )
    return within(open_source(init_from), into) if init_from else None


def _with_model(
    config: ConfigDict, previous: dict[str, Any] | None, source: Source | None
) -> ConfigDict:
    """The config with the model that the directory's run has, else that of what it starts from.

    What is no size stays the config's own: head, dropout, adapters, how it is computed.
    """
    model = previous["model"] if previous else source.model if source else None
    if model is None:
        raise LabError("model_from_init = True takes the model of --init_from, which is missing")
    if model.get("kind", config.model.kind) != config.model.kind:
        raise LabError(
            f'--init_from holds a model of kind "{model["kind"]}", config.model.kind is '
            f'"{config.model.kind}"'
        )
    config = config.copy_and_resolve_references()
    with config.unlocked():
        config.model.update(_sizes(model, config.model))
    return config


def _sizes(model: dict[str, Any], section: ConfigDict) -> dict[str, Any]:
    """Those of the section's settings, and of its parts', that a base decides."""
    taken = {k: v for k, v in model.items() if k in section and not OWN.fullmatch(k)}
    for key, part in taken.items():
        if isinstance(section[key], ConfigDict):
            taken[key] = _sizes(part if isinstance(part, dict) else vars(part), section[key])
    return taken


def _show_differences(base: dict[str, Any], model: dict[str, Any]) -> None:
    base, model = flatten(base), flatten(model)
    differing = [f"{k} = {v!r}" for k, v in base.items() if k in model and model[k] != v]
    if differing:
        log(f"init_from: its model has other settings than this one: {', '.join(differing)}")


def _finish(trainer: Trainer, state: TrainState, workdir: Path, checkpoints: Checkpoints) -> None:
    """Scores the test split with the mean of the last checkpoints, as the config says."""
    count = trainer.config.average
    steps = checkpoints.scored(count)
    if steps and (count > 1 or steps[-1] != int(state.step)):
        what = "mean of the checkpoints of steps" if count > 1 else "best checkpoint, of step"
        log(f"scores the {what} {', '.join(map(str, steps))}")
        mean = checkpoints.average_params(steps, trainer.state_shardings.params)
        state = state.replace(params=mean, average={})
    values, scores = final_scores(trainer, trainer.whole(state), "test")
    step = int(state.step)
    writer = MetricWriter(workdir, step, trainer.config.tensorboard, "test/")
    found = {**values, **scores.notes}
    writer.write(step, {f"test/{name}": value for name, value in found.items()})
    writer.close()
    write_results(trainer, state, workdir, checkpoints, values)
    write_files(scores, workdir)
    show_samples(scores.samples)
    shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
    log(f"step {step} test: {shown}  {' '.join(scores.notes.values())}")


def write_files(scores: Scores, workdir: Path) -> None:
    """What belongs to the scores, into the run's directory."""
    for name, content in scores.files.items() if jax.process_index() == 0 else ():
        write_atomically(workdir / name, content)
        log(f"wrote {workdir / name}")


def mesh_to_use(resolved: Resolved) -> Mesh:
    """Where a run lies that is used and not trained: on the devices that there are, whatever it
    was trained on."""
    batch = resolved.sections.get("batch")
    rows = getattr(batch, "rows_multiple", 0) or getattr(batch, "rows", 0)
    return used_mesh(resolved.run.mesh, rows // resolved.run.micro_batches)


def build_task(resolved: Resolved, assets: dict[str, bytes] | None, mesh: Mesh) -> Task:
    """The task of a config; its data is read when first used."""
    return tasks.objective(resolved.task_kind).build(
        resolved.model_kind,
        resolved.model,
        resolved.sections,
        assets=assets,
        seed=resolved.run.seed,
        rows_multiple=rows_multiple(mesh, resolved.run.micro_batches),
    )


def refuse_changes(previous: dict[str, Any], now: dict[str, Any], workdir: Path) -> None:
    """One directory is one run: LabError names the first key that differs."""
    old, new = _with_defaults(previous), _with_defaults(now)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) == new.get(key) or re.fullmatch(FREE_ON_RESUME, key):
            continue
        raise LabError(
            f"{workdir} holds a run with config.{key} = {old.get(key)!r}, this one has "
            f"{new.get(key)!r}: set it back to resume, or use another --workdir"
        )
    decays = now["optimizer"]["schedule"] in ("cosine", "linear")
    if decays and any(old.get(key) != new.get(key) for key in ("steps", "epochs")):
        log("steps changed: from here on the learning rate follows the new schedule")


def _refuse_parted_statistics(trainer: Trainer, previous: dict[str, Any] | None) -> None:
    """Means over micro-batches are others than those over the batch."""
    parts = (previous or {}).get("micro_batches", trainer.config.micro_batches)
    if STATISTICS in trainer.param_shapes and parts != trainer.config.micro_batches:
        raise LabError(
            f"config.micro_batches was {parts} and decides what the model's batch statistics are "
            "of: set it back to resume, or use another --workdir"
        )


def _with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """Flat; a key that came into being after the config was stored has its default."""
    defaults = default_config(config["model"]["kind"], config["task"]["kind"])
    return {**flatten(defaults), **flatten(config)}


def stored_config(workdir: Path) -> dict[str, Any]:
    """The config of the run in a directory."""
    workdir = place(workdir)
    config = _read_config(workdir)
    if config is None:
        raise LabError(f"{workdir} holds no run (no {CONFIG}): train one with --workdir={workdir}")
    return config


def open_run(
    config: ConfigDict, workdir: Path, average: int = 0, base: str = ""
) -> tuple[Trainer, Params]:
    """A trained run on the devices that there are, with the parameters of its whole model.

    `average` > 1 takes the mean of the trained parameters of so many newest checkpoints; 0 as many
    of them as the config says and are there. `base` is where an adapted run's base lies now, if not
    where it lay.
    """
    trainer, state = open_state(config, workdir, average, base)
    return trainer, trainer.whole(state)


def open_state(
    config: ConfigDict, workdir: Path, average: int = 0, base: str = ""
) -> tuple[Trainer, TrainState]:
    """The same with what was trained and what was frozen apart, and no optimizer state."""
    resolved = resolve(config)
    best = "" if average else resolved.run.best
    checkpoints = Checkpoints(workdir, resolved.run.keep, log, best)
    try:
        saved = _newest(checkpoints)
        if saved is None:
            damaged = "only damaged checkpoints" if checkpoints.damaged() else "no checkpoint yet"
            raise LabError(f"{workdir} holds {damaged}: train it first, or bring one back")
        _refuse_model_changes(saved.config, config.to_dict())
        steps = checkpoints.scored(average or resolved.run.average)
        if not 0 <= average <= len(steps):
            raise LabError(f"--average={average}, but {workdir} has {len(steps)} good checkpoints")
        mesh = mesh_to_use(resolved)
        trainer = Trainer(resolved.run, build_task(resolved, saved.assets, mesh), mesh)
        params = checkpoints.average_params(steps, trainer.state_shardings.params)
    finally:
        checkpoints.close()
    state = TrainState(saved.step, params, None)
    if not saved.base:
        return trainer, state
    return trainer, take_frozen(trainer, state, reopen_base(saved.base, base), saved.base)


def _refuse_model_changes(previous: dict[str, Any], now: dict[str, Any]) -> None:
    old, new = _with_defaults(previous), _with_defaults(now)
    for key in sorted(old.keys() | new.keys()):
        weighs = key.startswith(("model.", "tokenizer.", "adapt."))
        if weighs and not re.fullmatch(COMPUTED, key) and old.get(key) != new.get(key):
            raise LabError(
                f"config.{key} = {new.get(key)!r}, but the checkpoint was trained with "
                f"{old.get(key)!r}"
            )


def _newest(checkpoints: Checkpoints) -> Saved | None:
    good = checkpoints.newest(1)
    return checkpoints.read(good[0]) if good else None


def _read_config(workdir: Path) -> dict[str, Any] | None:
    path = workdir / CONFIG
    return renamed(read_json(path)) if path.exists() else None
