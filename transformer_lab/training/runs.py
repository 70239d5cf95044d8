"""A run on disk: its directory, its stored config, and how it is opened again."""

import json
import re
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_lab import tasks
from transformer_lab.errors import LabError
from transformer_lab.tasks.base import Params, Task
from transformer_lab.training.checkpoint import Checkpoints, Saved, write_atomically
from transformer_lab.training.config import FREE_ON_RESUME, Resolved, flatten, resolve
from transformer_lab.training.loop import Trainer, describe, final_scores, train
from transformer_lab.training.mesh import make_mesh, path_of, rows_multiple
from transformer_lab.training.state import TrainState
from transformer_lab.training.writers import MetricWriter, log, make_workdir, show_samples

CONFIG = "config.json"


def run(config: ConfigDict, workdir: Path, init_from: str = "", init_pattern: str = ".*") -> None:
    """Trains the config's run in a directory, new or resumed, and scores the finished model."""
    resolved = resolve(config)
    stored = config.to_dict()
    make_workdir(workdir)
    checkpoints = Checkpoints(workdir, resolved.run.keep, log)
    try:
        saved = _newest(checkpoints)
        if saved is None and checkpoints.damaged():
            raise LabError(
                f"every checkpoint in {checkpoints.root} is damaged (see above): bring one back, "
                "or move the directory away to start anew"
            )
        previous = saved.config if saved else _read_config(workdir)
        if previous is not None:
            refuse_changes(previous, stored, workdir)
        source = _open_source(init_from) if init_from and saved is None else None
        assets = saved.assets if saved else source[1].assets if source else None
        mesh = make_mesh(resolved.run.mesh)
        trainer = Trainer(resolved.run, build_task(resolved, assets, mesh), mesh)
        if saved and saved.step > trainer.steps:
            raise LabError(
                f"{workdir} is at step {saved.step}, beyond the {trainer.steps} asked for: raise "
                "config.steps, or use another --workdir"
            )
        describe(trainer)
        if saved:
            log(f"resumes at step {saved.step} of {trainer.steps} in {workdir}")
            state = checkpoints.restore(saved.step, trainer.abstract_state)
        else:
            state = trainer.init()
            if source:
                state = _warm_start(trainer, state, *source, init_pattern)
        write_atomically(workdir / CONFIG, json.dumps(stored, indent=1).encode())
        state = train(trainer, state, workdir, checkpoints, stored, saved)
        _finish(trainer, state, workdir, checkpoints)
    finally:
        checkpoints.close()


def _finish(trainer: Trainer, state: TrainState, workdir: Path, checkpoints: Checkpoints) -> None:
    """Scores the test split with the mean of the last checkpoints, as the config says."""
    params, count = state.params, trainer.config.average
    steps = checkpoints.good_steps()[-count:]
    if count > 1 and steps:
        log(f"scores the mean of the checkpoints of steps {', '.join(map(str, steps))}")
        params = checkpoints.average_params(steps, trainer.state_shardings.params)
    values, scores = final_scores(trainer, params, "test")
    step = int(state.step)
    writer = MetricWriter(workdir, step, trainer.config.tensorboard)
    found = {**values, **scores.notes}
    writer.write(step, {f"test/{name}": value for name, value in found.items()})
    writer.close()
    show_samples(scores.samples)
    shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
    log(f"step {step} test: {shown}  {' '.join(scores.notes.values())}")


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
    old, new = flatten(previous), flatten(now)
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


def stored_config(workdir: Path) -> dict[str, Any]:
    """The config of the run in a directory."""
    config = _read_config(workdir)
    if config is None:
        raise LabError(f"{workdir} holds no run (no {CONFIG}): train one with --workdir={workdir}")
    return config


def open_run(config: ConfigDict, workdir: Path, average: int = 0) -> tuple[Trainer, Params]:
    """A trained run on the config's mesh, with its parameters.

    `average` > 1 takes the mean of the parameters of so many newest checkpoints; 0 as many of them
    as the config says and are there.
    """
    resolved = resolve(config)
    checkpoints = Checkpoints(workdir, resolved.run.keep, log)
    try:
        saved = _newest(checkpoints)
        if saved is None:
            damaged = "only damaged checkpoints" if checkpoints.damaged() else "no checkpoint yet"
            raise LabError(f"{workdir} holds {damaged}: train it first, or bring one back")
        _refuse_model_changes(saved.config, config.to_dict())
        steps = checkpoints.good_steps()
        if average > len(steps):
            raise LabError(f"--average={average}, but {workdir} has {len(steps)} good checkpoints")
        mesh = make_mesh(resolved.run.mesh)
        trainer = Trainer(resolved.run, build_task(resolved, saved.assets, mesh), mesh)
        steps = steps[-(average or resolved.run.average) :]
        return trainer, checkpoints.average_params(steps, trainer.state_shardings.params)
    finally:
        checkpoints.close()


def _refuse_model_changes(previous: dict[str, Any], now: dict[str, Any]) -> None:
    old, new = flatten(previous), flatten(now)
    for key in sorted(old.keys() | new.keys()):
        if key.startswith(("model.", "tokenizer.")) and old.get(key) != new.get(key):
            raise LabError(
                f"config.{key} = {new.get(key)!r}, but the checkpoint was trained with "
                f"{old.get(key)!r}"
            )


def _newest(checkpoints: Checkpoints) -> Saved | None:
    good = checkpoints.good_steps()
    return checkpoints.read(good[-1]) if good else None


def _read_config(workdir: Path) -> dict[str, Any] | None:
    path = workdir / CONFIG
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(f"{path} cannot be read ({error})") from error


def _open_source(init_from: str) -> tuple[Checkpoints, Saved]:
    workdir = Path(init_from)
    if not workdir.is_dir():
        raise LabError(f"--init_from={init_from}: there is no such directory")
    checkpoints = Checkpoints(workdir, 1, log)
    saved = _newest(checkpoints)
    if saved is None:
        raise LabError(f"--init_from={init_from}: it holds no good checkpoint")
    return checkpoints, saved


def _warm_start(
    trainer: Trainer, state: TrainState, source: Checkpoints, saved: Saved, pattern: str
) -> TrainState:
    """Takes the leaves whose path matches and whose shape fits; lists what became of each."""
    stored = source.restore_params(saved.step)
    source.close()
    params, lists = merge_params(state.params, stored, pattern)
    for name, paths in lists.items():
        log(f"init_from step {saved.step}: {name} {len(paths)}: {', '.join(paths) or '-'}")
    if not lists["loaded"]:
        raise LabError(f'--init_from: no parameter fits the pattern "{pattern}"')
    return trainer.with_params(state, params)


def merge_params(
    params: Params, stored: Params, pattern: str
) -> tuple[Params, dict[str, list[str]]]:
    """`params` with the stored leaves of equal path and shape that the pattern is found in.

    The lists name the paths loaded, new (kept as initialised) and skipped (stored, not used).
    """
    flat = {path_of(p): x for p, x in jax.tree_util.tree_flatten_with_path(stored)[0]}
    loaded, new = [], []

    def take(key_path, leaf):
        path = path_of(key_path)
        fits = path in flat and flat[path].shape == leaf.shape
        if fits and re.search(pattern, path):
            loaded.append(path)
            return flat[path].astype(leaf.dtype)
        new.append(path)
        return leaf

    merged = jax.tree_util.tree_map_with_path(take, params)
    skipped = sorted(flat.keys() - set(loaded))
    return merged, {"loaded": loaded, "new": new, "skipped": skipped}
