"""A translator so small that it trains in a second, for the tests of the machinery."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from transformer_lab.tasks.base import Task
from transformer_lab.training import runs
from transformer_lab.training.config import default_config, resolve
from transformer_lab.training.mesh import make_mesh
from transformer_lab.training.runs import build_task
from transformer_lab.training.state import TrainState
from transformer_lab.training.trainer import Trainer

STACK = {  # of a transformer
    "model.layers": 1, "model.width": 16, "model.heads": 2, "model.head_dim": 8,
    "model.feed_forward_width": 24,
}  # fmt: skip
RUN = {"steps": 10, "log_every": 1, "eval_every": 100, "save_every": 5}
FAST = {  # a few dozen steps that learn
    "optimizer.learning_rate": 1e-2, "optimizer.warmup_steps": 5, "optimizer.schedule": "constant",
}  # fmt: skip


def config_of(model: str, task: str, *settings: dict[str, Any], **changes: Any) -> ConfigDict:
    """The default config on one device with other values, by dotted keys; in `changes` __ may
    stand for a dot."""
    config, values = default_config(model=model, task=task), {}
    values |= {"tensorboard": False, "mesh.data": 1}
    for some in (*settings, changes):
        values |= {key.replace("__", "."): value for key, value in some.items()}
    config.update_from_flattened_dict(values)
    return config


def draw(module: nn.Module, *inputs: Any, size: float = 0.5, **keywords: Any) -> Any:
    """Variables of a module that are normal of this deviation everywhere, biases too; nothing is
    compiled for it."""
    shapes = jax.eval_shape(partial(module.init, **keywords), jax.random.key(0), *inputs)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: jnp.asarray(size * rng.normal(size=s.shape), s.dtype), shapes)


def first_batch(task: Task) -> dict[str, np.ndarray]:
    """The first training batch."""
    with task.train_batches() as batches:
        return next(batches)


STARTS: dict[str, TrainState] = {}


def start(trainer: Trainer) -> TrainState:
    """The state of step 0, drawn by one program for all trainers of one model and optimizer.

    It is a function of the model, the optimizer and the seed: no batch, task or mesh changes it.
    """
    shapes, config = trainer.step_state, trainer.config
    said = jax.tree.map(lambda x: (x.shape, x.dtype), shapes), trainer.task.model_config
    key = repr((*said, config.seed, config.adapt))
    if key not in STARTS:
        STARTS[key] = jax.device_get(trainer.init())
    return jax.device_put(STARTS[key], jax.tree.map(lambda x: x.sharding, shapes))


def trained(trainer: Trainer, steps: int = 40) -> tuple[Any, list[float]]:
    """The parameters after so many steps, and the losses."""
    state, losses = start(trainer), []
    with trainer.task.train_batches() as batches:
        for _ in range(steps):
            state, metrics = trainer.train_step(state, trainer.place(next(batches)))
            losses.append(float(metrics["loss"]))
    return state.params, losses


def tiny_config(**changes) -> ConfigDict:
    """Reversal of generated sentences; keys of `changes` may be dotted, as on the command line."""
    values = {
        "data.source": "reverse",
        "data.max_pairs": 60,
        "data.validation_size": 10,
        "data.test_size": 10,
        "tokenizer.kind": "word",
        "batch.tokens_per_batch": 320,
        "batch.buckets": 1,
        "model.max_length": 16,
        "optimizer.learning_rate": 3e-3,
        "optimizer.warmup_steps": 4,
        "task.score_examples": 0,
    }
    return config_of("encoder_decoder", "translation", STACK, RUN, values, **changes)


def make_trainer(config: ConfigDict, devices: int = 8) -> Trainer:
    """Task, steps and mesh of a config, on the first so many devices."""
    resolved = resolve(config)
    mesh = make_mesh(resolved.run.mesh, devices)
    return Trainer(resolved.run, build_task(resolved, None, mesh), mesh)


def run_alone(config: ConfigDict, workdir: Path, *source: str, **more: str) -> None:
    """Trains a run on one of the devices; `source` and `more` are further arguments of the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "make_mesh", lambda config: make_mesh(config, 1))
        runs.run(config, workdir, *source, **more)


def leave_run(config: ConfigDict, workdir: Path) -> None:
    """Leaves a run with its first parameters, on one device, which nobody trained."""
    trainer = make_trainer(config, 1)
    parts = trainer.task, trainer.mesh, trainer.init().params
    runs.write_new(config, *parts, workdir)


def read_metrics(workdir: Path) -> list[dict]:
    """The lines of metrics.jsonl, without the time at which each was written."""
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]
