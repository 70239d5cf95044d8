"""The one training loop: evaluate, save, next batch, step, log, in this order for any task."""

import contextlib
import math
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_lab.data.pipeline import Batches
from transformer_lab.errors import LabError
from transformer_lab.tasks.base import Params, Place, Task, count_parameters
from transformer_lab.training.adapting import assemble
from transformer_lab.training.checkpoint import Checkpoints, Saved
from transformer_lab.training.config import RunConfig
from transformer_lab.training.mesh import batch_sharding, own_rows, placer, shardings
from transformer_lab.training.optimizer import make_optimizer, schedule
from transformer_lab.training.signals import Signals, agreed
from transformer_lab.training.state import TrainState, init_state, make_train_step, split_params
from transformer_lab.training.writers import MetricWriter, ProgressLine, log


class Trainer:
    """A task with its compiled steps, on a mesh."""

    def __init__(self, config: RunConfig, task: Task, mesh: Mesh):
        self.config, self.task, self.mesh = config, task, mesh
        self.steps = config.steps
        if config.epochs is not None:
            self.steps = math.ceil(config.epochs * task.steps_per_epoch())
        rate = schedule(config.optimizer, self.steps)
        optimizer = make_optimizer(config.optimizer, rate)
        adapt, self.adapted = config.adapt, config.adapt.method != "full"
        self._init = lambda: init_state(task.init, optimizer, config.seed, adapt)
        shapes = jax.eval_shape(self._init)
        self.state_shardings = shardings(shapes, mesh, config.mesh.rules)
        self.param_shardings = self.state_shardings.params  # of the whole model
        self.param_shapes = shapes.params
        if self.adapted:
            self.param_shapes = jax.eval_shape(task.init, jax.random.key(0))
            whole = {"params": self.param_shapes}  # with the paths that they have in a state
            self.param_shardings = shardings(whole, mesh, config.mesh.rules)["params"]
        self.abstract_state = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
            shapes,
            self.state_shardings,
        )
        self.place: Place = placer(mesh)
        step = make_train_step(
            task.loss, optimizer, rate, config.seed, config.micro_batches, mesh, adapt
        )
        everywhere = NamedSharding(mesh, P())
        self.train_step = jax.jit(
            step,
            donate_argnums=0,
            in_shardings=(self.state_shardings, batch_sharding(mesh)),
            out_shardings=(self.state_shardings, everywhere),
        )
        self.eval_step = jax.jit(
            task.metrics,
            in_shardings=(self.param_shardings, batch_sharding(mesh)),
            out_shardings=everywhere,
        )
        self._split = jax.jit(
            lambda params: split_params(params, config.seed, adapt),
            out_shardings=(self.state_shardings.params, self.state_shardings.frozen),
        )
        self._assemble = jax.jit(
            lambda trained, frozen: assemble(trained, frozen, adapt),
            out_shardings=self.param_shardings,
        )

    def init(self) -> TrainState:
        """The first state, made where it will lie."""
        return jax.jit(self._init, out_shardings=self.state_shardings)()

    def with_params(self, state: TrainState, params: Params) -> TrainState:
        """The state with other parameters of the whole model, laid as the mesh has them."""
        params = jax.device_put(params, self.param_shardings)
        trained, frozen = self._split(params) if self.adapted else (params, {})
        return state.replace(params=trained, frozen=frozen)

    def whole(self, state: TrainState) -> Params:
        """The parameters as the model takes them, for evaluation and decoding."""
        return self._assemble(state.params, state.frozen) if self.adapted else state.params

    def evaluate(self, params: Params, split: str) -> dict[str, float]:
        """Sums over every example of a split, divided once; "loss" in nats a token."""
        sums: dict[str, np.ndarray] = {}
        results = [
            self.eval_step(params, self.place(batch)) for batch in self.task.eval_batches(split)
        ]
        for pairs in results:
            for name, pair in pairs.items():
                sums[name] = sums.get(name, 0.0) + np.asarray(pair, np.float64)
        values = {name: float(total / weight) for name, (total, weight) in sums.items() if weight}
        if "nll" in values:
            values["perplexity"] = math.exp(min(values.pop("nll"), 700.0))
        return values


def train(
    trainer: Trainer,
    state: TrainState,
    workdir: Path,
    checkpoints: Checkpoints,
    config: dict[str, Any],
    saved: Saved | None,
    base: dict[str, Any] | None = None,
) -> TrainState:
    """Runs from the state's step to the end. `config` and `base`, the record of where the frozen
    leaves came from, are stored with each checkpoint."""
    run, task, total = trainer.config, trainer.task, trainer.steps
    start = step = int(state.step)
    batches = task.train_batches()
    if jax.process_count() > 1 and isinstance(batches, Batches):
        batches.only(own_rows(trainer.mesh))
    if saved is not None and saved.data:  # an imported model has read no data yet
        batches.restore(_same_data(saved, task.fingerprint()))
    assets = task.assets()
    writer = MetricWriter(workdir, start, run.tensorboard)
    progress = ProgressLine(total, start)
    pending = _Pending(run, total, writer, progress, checkpoints)

    def save():
        data = {"content": task.fingerprint(), **batches.get_state()}
        checkpoints.save(step, state, data, config, assets, base)

    try:
        with Signals() as signals:
            stop = 0
            while True:
                last = step >= total
                if jax.process_count() == 1 or step % run.log_every == 0:
                    stop = agreed(signals.received)
                if step > start:
                    due_eval = step % run.eval_every == 0 or last
                    due_save = step % run.save_every == 0 or last or stop
                    if due_eval or due_save:
                        pending.read()
                    if due_eval and not stop:
                        with pending.clock_stopped():
                            _evaluate(trainer, state, step, writer)
                    if due_save:
                        save()
                if last or stop:
                    break
                host = next(batches)
                state, metrics = trainer.train_step(state, trainer.place(host))
                step += 1
                pending.read()  # of the step before: this one is running meanwhile
                pending.put(step, metrics, task.sizes(host))
            checkpoints.wait()
            if stop:
                name = signal.Signals(stop).name
                log(f"{name}: saved at step {step} of {total}; the same command resumes there")
                sys.exit(128 + stop)
    finally:
        progress.close()
        writer.close()
        batches.close()
    return state


def _same_data(saved: Saved, fingerprint: str) -> dict[str, Any]:
    """The position in the data, if the data is still what it was."""
    position = dict(saved.data)
    if position.pop("content") != fingerprint:
        raise LabError(
            f"the data's fingerprint differs from the one at step {saved.step}: the run cannot be "
            "resumed on other data; put the data back, or use another --workdir"
        )
    return position


class _Pending:
    """The newest step's metrics, read once the next step is under way."""

    def __init__(self, run, total, writer, progress, checkpoints):
        self.run, self.total = run, total
        self.writer, self.progress, self.checkpoints = writer, progress, checkpoints
        self._waiting = None
        self._since, self._counts = time.monotonic(), {}

    def put(self, step: int, metrics: dict[str, jax.Array], sizes: dict[str, int]) -> None:
        self._waiting = (step, metrics)
        for name, count in {**sizes, "steps": 1}.items():
            self._counts[name] = self._counts.get(name, 0) + count

    @contextlib.contextmanager
    def clock_stopped(self):
        """What is done inside does not count in the rates."""
        began = time.monotonic()
        yield
        self._since += time.monotonic() - began

    def read(self) -> None:
        if self._waiting is None:
            return
        step, metrics = self._waiting
        self._waiting = None
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        if not (math.isfinite(values["loss"]) and math.isfinite(values["grad_norm"])):
            good = self.checkpoints.good_steps()
            raise LabError(
                f"step {step}: loss {values['loss']}, gradient norm {values['grad_norm']}; the "
                f"last good checkpoint is {f'step {good[-1]}' if good else 'none'}. "
                "Lower optimizer.learning_rate, lengthen warmup_steps or set optimizer.clip_norm"
            )
        text = None
        if step % self.run.log_every == 0 or step == self.total:
            now = time.monotonic()
            seconds = max(now - self._since, 1e-9)
            rates = {f"{n}_per_second": c / seconds for n, c in self._counts.items()}
            self._since, self._counts = now, {}
            self.writer.write(step, {**values, **rates})
            shown = "  ".join(
                f"{r:,.{0 if r >= 10 else 2}f} {n.split('_')[0]}/s" for n, r in rates.items()
            )
            text = f"loss {values['loss']:.4f}  {shown}  lr {values['learning_rate']:.2e}"
        self.progress.update(step, text)


def _evaluate(trainer, state, step, writer) -> None:
    params = trainer.whole(state)
    scores = trainer.task.score(params, "validation", trainer.place, False)
    values = {**trainer.evaluate(params, "validation"), **scores.values}
    writer.write(step, {f"validation/{name}": value for name, value in values.items()})
    shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
    log(f"step {step} validation: {shown}")


def final_scores(trainer: Trainer, params: Params, split: str) -> tuple[dict[str, float], Any]:
    """All sums and scores of a split, with sample rows and notes."""
    scores = trainer.task.score(params, split, trainer.place, True)
    return {**trainer.evaluate(params, split), **scores.values}, scores


def describe(trainer: Trainer, say: Callable[[str], None] = log) -> None:
    """What the run is about to do."""
    count = count_parameters(trainer.param_shapes)
    sizes = ", ".join(f"{axis} {size}" for axis, size in trainer.mesh.shape.items())
    say(f"{count:,} parameters on {jax.device_count()} {jax.default_backend()} device(s): {sizes}")
    if trainer.adapted:
        state, adapt = trainer.abstract_state, trainer.config.adapt
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.frozen))
        say(
            f"{adapt.method}: {count_parameters(state.params):,} parameters train, the rest is "
            f"frozen in {adapt.base}, {size:,} bytes"
        )
    for line in trainer.task.report():
        say(line)
    epoch = trainer.task.steps_per_epoch()
    say(f"{trainer.steps:,} steps = {trainer.steps / epoch:.1f} epochs of {epoch:,} batches")
