"""Runs of one config share a task and its compiled steps: each program is traced once."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from transformer_lab.training import runs
from transformer_lab.training.config import RunConfig
from transformer_lab.training.mesh import fitted, make_mesh
from transformer_lab.training.runs import build_task
from transformer_lab.training.trainer import Trainer

# What the steps do not depend on, as long as the learning rate's schedule is no function of steps.
FREE = ("steps", "log_every", "eval_every", "save_every", "keep", "average", "best", "patience")
_tasks: dict[Any, Any] = {}
_trainers: dict[Any, Trainer] = {}


def shared_task(resolved: Any, assets: dict[str, bytes] | None, mesh: Any) -> Any:
    """`build_task`, once for each config of generated data: files may change between two runs."""
    if resolved.sections["data"].source not in ("reverse", "patterns"):
        return build_task(resolved, assets, mesh)
    run = resolved.run.seed, resolved.run.micro_batches
    key = mesh, repr((resolved.model_kind, resolved.model, resolved.sections, run, assets))
    if key not in _tasks:
        _tasks[key] = build_task(resolved, assets, mesh)
    return _tasks[key]


def shared_trainer(config: RunConfig, task: Any, mesh: Any) -> Trainer:
    """`Trainer`, compiled once for each task and config, whatever its number of steps is."""
    decays = config.optimizer.schedule in ("cosine", "linear")
    if decays or config.epochs or all(task is not other for other in _tasks.values()):
        return Trainer(config, task, mesh)
    same = replace(config, **{name: getattr(RunConfig, name) for name in FREE})
    key = id(task), mesh, repr(same)
    if key not in _trainers:
        _trainers[key] = Trainer(config, task, mesh)
    found = copy.copy(_trainers[key])
    found.config, found.steps = config, config.steps
    return found


@pytest.fixture(autouse=True, scope="module")
def compiled_once(request):
    """A file of tests may say `DEVICES = 1`, the number of devices that its runs have."""
    with pytest.MonkeyPatch.context() as patch:
        if count := getattr(request.module, "DEVICES", 0):
            patch.setattr(runs, "make_mesh", lambda config: make_mesh(config, count))
            used = lambda config, rows: make_mesh(fitted(config, count, rows), count)  # noqa: E731
            patch.setattr(runs, "used_mesh", used)
        patch.setattr(runs, "build_task", shared_task)
        patch.setattr(runs, "Trainer", shared_trainer)
        yield
