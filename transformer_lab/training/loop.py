"""The one training loop: evaluate, save, next batch, step, log, in this order for any task."""

import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_lab import models
from transformer_lab.data.pipeline import Batches
from transformer_lab.errors import LabError
from transformer_lab.ops.kernels import chosen
from transformer_lab.ops.stacked import stack_layers, unstack_layers
from transformer_lab.tasks.base import Params, Place, Task, count_parameters
from transformer_lab.training.adapting import assemble
from transformer_lab.training.checkpoint import Checkpoints, Saved
from transformer_lab.training.config import RunConfig
from transformer_lab.training.mesh import batch_sharding, own_rows, placer, shardings
from transformer_lab.training.optimizer import make_optimizer, schedule
from transformer_lab.training.pace import Pace, Profile
from transformer_lab.training.peers import everyones, of_first
from transformer_lab.training.signals import SIGNALS, Stopped
from transformer_lab.training.state import TrainState, init_state, make_train_step, split_params
from transformer_lab.training.writers import MetricWriter, ProgressLine, evaluated, log


def _placed(shapes: Any, where: Any) -> Any:
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, where
    )


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
        init = lambda: init_state(task.init, optimizer, config.seed, adapt)  # noqa: E731
        # Layers train stacked where all of them do, by an optimizer that treats each alike.
        whole = not self.adapted and config.optimizer.name != "adafactor"
        stack = lambda state: stack_layers(state, task.model_config) if whole else state  # noqa: E731
        shapes = jax.eval_shape(init)  # canonical: of checkpoints, and of all but the step itself
        self.state_shardings = shardings(shapes, mesh, config.mesh.rules)
        self.param_shardings = self.state_shardings.params  # of the whole model
        self.param_shapes = shapes.params
        if self.adapted:
            self.param_shapes = jax.eval_shape(task.init, jax.random.key(0))
            whole = {"params": self.param_shapes}  # with the paths that they have in a state
            self.param_shardings = shardings(whole, mesh, config.mesh.rules)["params"]
        self.abstract_state = _placed(shapes, self.state_shardings)
        shapes = jax.eval_shape(stack, shapes)
        inner = shardings(shapes, mesh, config.mesh.rules)
        self.step_state = _placed(shapes, inner)  # what the step takes, as shapes
        self.stacked = jax.tree.structure(shapes) != jax.tree.structure(self.abstract_state)
        self.init = jax.jit(lambda: stack(init()), out_shardings=inner)
        self._stack = jax.jit(stack, out_shardings=inner)
        self._unstack = jax.jit(unstack_layers, out_shardings=self.state_shardings)
        self._unstack_params = jax.jit(unstack_layers, out_shardings=self.state_shardings.params)
        self.place: Place = placer(mesh)
        step = make_train_step(
            task.loss, optimizer, rate, config.seed, config.micro_batches, mesh, adapt
        )
        everywhere = NamedSharding(mesh, P())
        inputs = (inner, batch_sharding(mesh))
        self._votes: dict[int, tuple[jax.Array, ...]] = {}
        if jax.process_count() > 1:
            step, inputs = _voting(step), (*inputs, NamedSharding(mesh, P(mesh.axis_names)))
        self.train_step = jax.jit(
            step,
            donate_argnums=0,
            in_shardings=inputs,
            out_shardings=(inner, everywhere),
        )

        def metrics(params, batch):
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return task.metrics(params, batch)

        self.eval_step = jax.jit(
            metrics,
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

    def vote(self, number: int) -> tuple[jax.Array, ...]:
        """What `train_step` takes besides when there are several processes: this one's signal."""
        if jax.process_count() > 1 and number not in self._votes:
            sharding = NamedSharding(self.mesh, P(self.mesh.axis_names))
            own = lambda _: np.full(1, number, np.int32)  # noqa: E731
            vote = jax.make_array_from_callback((self.mesh.size,), sharding, own)
            self._votes[number] = (vote,)
        return self._votes.get(number, ())

    def stack(self, state: TrainState) -> TrainState:
        """A canonical state as the step takes it."""
        return self._stack(state) if self.stacked else state

    def canonical(self, state: TrainState) -> TrainState:
        """The state as it is stored, each layer for itself."""
        return self._unstack(state) if self.stacked else state

    def with_params(self, state: TrainState, params: Params) -> TrainState:
        """The state with other parameters of the whole model, laid as the mesh has them."""
        params = jax.device_put(params, self.param_shardings)
        trained, frozen = self._split(params) if self.adapted else (params, {})
        state = self.canonical(state).replace(params=trained, frozen=frozen)
        return self.stack(state)

    def whole(self, state: TrainState) -> Params:
        """The parameters as the model takes them, for evaluation and decoding."""
        if self.adapted:
            return self._assemble(state.params, state.frozen)
        known = jax.tree.structure(state.params) == jax.tree.structure(self.param_shapes)
        return state.params if known else self._unstack_params(state.params)

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


def _voting(step: Callable) -> Callable:
    """The step with one more argument, a number a device; its metrics have the largest as "stop".

    So all processes know of a signal that one of them has, at the same step, without waiting.
    """

    def voting(state, batch, votes):
        state, metrics = step(state, batch)
        return state, {**metrics, "stop": votes.max()}

    return voting


def train(
    trainer: Trainer,
    state: TrainState,
    workdir: Path,
    checkpoints: Checkpoints,
    config: dict[str, Any],
    position: dict[str, Any] | None = None,
    base: dict[str, Any] | None = None,
    profile: int = 0,
) -> TrainState:
    """Runs from the state's step, whose place in the data is `position`, to the end. `config` and
    `base`, the record of where the frozen leaves came from, are stored with each checkpoint.
    `profile` is how many steps are traced."""
    run, task, total = trainer.config, trainer.task, trainer.steps
    start = step = int(state.step)
    batches = task.train_batches()
    if jax.process_count() > 1 and isinstance(batches, Batches):
        batches.only(own_rows(trainer.mesh))
    if position:
        batches.restore(position)
    assets = task.assets()
    writer = MetricWriter(workdir, start, run.tensorboard)
    # A run that was told to stop saves without evaluating; that is made up for when it goes on.
    owed = start > 0 and of_first(lambda: "" if evaluated(workdir, start) else "owed")
    progress = ProgressLine(total, start)
    pace = Pace(workdir, models.flops_a_token(task.model_config, trainer.param_shapes))
    pending = _Pending(run, total, writer, progress, checkpoints, pace)
    trace = Profile(workdir, start, profile)

    def save():
        data = {"content": task.fingerprint(), **batches.get_state()}
        checkpoints.save(step, trainer.canonical(state), data, config, assets, base)
        pace.save()

    try:
        with SIGNALS.held() as signals:
            alone, first = jax.process_count() == 1, max(everyones(signals.received or 0))
            while True:
                last = step >= total
                stop = (signals.received or 0) if alone else pending.stop or first
                checkpoints.refuse_failure()
                due_eval = (step % run.eval_every == 0 or last) and (step > start or owed)
                due_save = (step % run.save_every == 0 or last or stop) and step > start
                if due_eval or due_save:
                    pending.read()
                if due_eval and not stop:
                    with pace.stopped():
                        _evaluate(trainer, state, step, writer)
                if due_save:
                    save()
                if last or stop:
                    break
                with pace.waiting():
                    host = next(batches)
                with chosen() as attention:
                    state, metrics = trainer.train_step(
                        state, trainer.place(host), *trainer.vote(signals.received or 0)
                    )
                if attention:  # something was compiled
                    log(f"attention, queries x keys: {', '.join(sorted(attention))}")
                step += 1
                pending.read()  # of the step before: this one is running meanwhile
                pending.put(step, metrics, task.sizes(host))
                if line := trace.at(step, metrics):
                    log(line)
            checkpoints.wait()
            if stop := stop or max(everyones(signals.received or 0)):
                name = signal.Signals(stop).name
                what = "saved" if step > start else "nothing new to save"
                log(f"{name}: {what} at step {step} of {total}; the same command resumes there")
                raise Stopped(128 + stop)
    finally:
        trace.close()
        progress.close()
        writer.close()
        batches.close()
    return state


def same_data(saved: Saved, task: Task) -> dict[str, Any]:
    """A checkpoint's position in the data; LabError if the data is no longer what it was."""
    position = dict(saved.data)
    if not position:  # an imported model has read none yet
        return {}
    if position.pop("content") != task.fingerprint():
        raise LabError(
            f"the data's fingerprint differs from the one at step {saved.step}: the run cannot be "
            "resumed on other data; put the data back, or use another --workdir"
        )
    return position


class _Pending:
    """The newest step's metrics, read once the next step is under way."""

    def __init__(self, run, total, writer, progress, checkpoints, pace):
        self.run, self.total = run, total
        self.writer, self.progress, self.checkpoints = writer, progress, checkpoints
        self.pace, self.stop = pace, 0
        self._waiting = None

    def put(self, step: int, metrics: dict[str, jax.Array], sizes: dict[str, int]) -> None:
        self._waiting = (step, metrics)
        self.pace.count(sizes)

    def read(self) -> None:
        if self._waiting is None:
            return
        step, metrics = self._waiting
        self._waiting = None
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self.stop = int(values.pop("stop", 0))
        if not (math.isfinite(values["loss"]) and math.isfinite(values["grad_norm"])):
            good = self.checkpoints.newest(1)
            raise LabError(
                f"step {step}: loss {values['loss']}, gradient norm {values['grad_norm']}; the "
                f"last good checkpoint is {f'step {good[-1]}' if good else 'none'}. "
                "Lower optimizer.learning_rate, lengthen warmup_steps or set optimizer.clip_norm"
            )
        text = None
        if step % self.run.log_every == 0 or step == self.total:
            paces, shown = self.pace.read()
            self.writer.write(step, {**values, **paces})
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
    rule = " (config.epochs decides, not config.steps)" if trainer.config.epochs else ""
    say(f"{trainer.steps:,} steps = {trainer.steps / epoch:.1f} epochs of {epoch:,} batches{rule}")
