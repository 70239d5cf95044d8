"""The one training loop: evaluate, save, next batch, step, log, in this order for any task."""

import math
import signal
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import jax

from transformer_lab import models
from transformer_lab.data.pipeline import Batches
from transformer_lab.errors import LabError, nearest
from transformer_lab.ops.kernels import chosen
from transformer_lab.tasks.base import Params, Task, count_parameters
from transformer_lab.terminal import Waiting, counted
from transformer_lab.training.checkpoint import Checkpoints, Saved, rank
from transformer_lab.training.config import RunConfig
from transformer_lab.training.mesh import own_rows, without_rule
from transformer_lab.training.pace import Pace, Profile
from transformer_lab.training.peers import everyones, of_first
from transformer_lab.training.signals import SIGNALS, Stopped
from transformer_lab.training.state import TrainState
from transformer_lab.training.trainer import Trainer
from transformer_lab.training.writers import MetricWriter, ProgressLine, evaluated, log

FEW = 100  # steps: a run of fewer is warned about


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
    """Trains from the state's step to the end, and returns the last state.

    `position` is where in the data to continue. `config` and `base`, the record of where the frozen
    parameters came from, are stored with each checkpoint. `profile` is how many steps are traced.
    Raises: `Stopped` after saving, if a signal told the run to stop.
    """
    run, task, total = trainer.config, trainer.task, trainer.steps
    start = step = int(state.step)
    batches = task.train_batches()
    if jax.process_count() > 1 and isinstance(batches, Batches):
        batches.only(own_rows(trainer.mesh))
    if position:
        batches.restore(position)
    writer = MetricWriter(workdir, start, run)
    # A run that was told to stop saves without evaluating; it evaluates when it is resumed.
    owed = start > 0 and of_first(lambda: "" if evaluated(workdir, start) else "owed")
    progress = ProgressLine(total, start)
    pace = Pace(workdir, models.flops_a_token(task.model_config, trainer.param_shapes))
    pending = _Pending(run, total, writer, progress, checkpoints, pace)
    trace, watch = Profile(workdir, start, profile), _Watch(run, checkpoints)
    compiling = Waiting("compiles the training step")

    def save(scores):
        data = {"content": task.fingerprint(), **batches.get_state()}
        canonical, assets = trainer.canonical(state), task.assets()
        checkpoints.save(step, canonical, data, config, assets, base, scores)
        pace.save()

    try:
        with SIGNALS.held() as signals:
            alone, first = jax.process_count() == 1, max(everyones(signals.received or 0))
            while True:
                last, scores = step >= total, None
                stop = (signals.received or 0) if alone else pending.stop or first
                checkpoints.refuse_failure()
                due_eval = (step % run.eval_every == 0 or last) and (step > start or owed)
                due_save = (step % run.save_every == 0 or last or stop) and step > start
                if due_eval or due_save:
                    pending.read()
                if due_eval and not stop:
                    with pace.stopped():
                        scores = _evaluate(trainer, state, step, writer)
                    better = watch.sees(step, scores)
                    due_save = due_save or better
                if (scores is not None or step == start) and watch.ends(step):
                    last, due_save = True, due_save or step > start
                if due_save:
                    save(scores)
                watch.refuse_unknown(scores)
                if last or stop:
                    break
                with pace.waiting():
                    params = partial(trainer.whole, state.replace(average={}))
                    host = task.complete(next(batches), step, params, trainer.place)
                if step == start and not progress.interactive:
                    log("compiles the training step, which can take a while; then it trains")
                with chosen() as attention, compiling if step == start else nullcontext():
                    state, metrics = trainer.train_step(
                        state, trainer.place(host), *trainer.vote(signals.received or 0)
                    )
                if attention:  # something was compiled
                    log(f"attention, queries x keys: {', '.join(sorted(attention))}")
                step += 1
                pending.read()  # the step before, while this one is running
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
    """A checkpoint's position in the data. Raises: LabError if the data is not what it was."""
    position = dict(saved.data)
    if not position:  # an imported model has read none yet
        return {}
    if position.pop("content") != task.fingerprint():
        raise LabError(
            f"the data's fingerprint differs from the one at step {saved.step}: the run cannot be "
            "resumed on other data; put the data back, or use another --workdir"
        )
    return position


class _Watch:
    """Keeps the best validation score so far, and tells when it has not improved for too long."""

    def __init__(self, run: RunConfig, checkpoints: Checkpoints):
        self.run, self.best = run, checkpoints.best()

    def sees(self, step: int, scores: dict[str, float]) -> bool:
        """Records an evaluation; returns whether its step is the best so far and shall be kept."""
        if not (name := self.run.best):
            return False
        value = scores.get(name, math.nan)
        better = self.best is None or rank(name, value) < rank(name, self.best[1])
        if better:
            self.best = (step, value)
        return better

    def ends(self, step: int) -> bool:
        """Whether the run shall end: `patience` evaluations have brought no better score."""
        if not self.run.patience or self.best is None:
            return False
        over = step - self.best[0] >= self.run.patience * self.run.eval_every
        if over:
            log(f"step {step}: {self.run.best} has not improved since step {self.best[0]}: the end")
        return over

    def refuse_unknown(self, scores: dict[str, float] | None) -> None:
        """Raises: LabError if an evaluation had no score of the name in `best`."""
        if scores is not None and self.run.best and self.run.best not in scores:
            hint = nearest(self.run.best, scores)
            raise LabError(f'best = "{self.run.best}": the validation has no such score{hint}')


class _Pending:
    """Holds the newest step's metrics and reads them once the next step is under way. So the host
    never waits for the step that is running."""

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
        # A loss that is not finite never recovers: the run stops before it is saved.
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
        self.progress.update(step, values["loss"], text)


def _evaluate(trainer, state, step, writer) -> dict[str, float]:
    params = trainer.whole(state)
    scores = trainer.task.score(params, "validation", trainer.place, False)
    values = {**trainer.evaluate(params, "validation"), **scores.values}
    if values:  # a split without examples has none, and leaves no line
        writer.write(step, {f"validation/{name}": value for name, value in values.items()})
    shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
    log(f"step {step} validation: {shown}")
    return values


def final_scores(trainer: Trainer, params: Params, split: str) -> tuple[dict[str, float], Any]:
    """All metrics and scores of a split by name, and the `Scores` with samples, files and notes."""
    scores = trainer.task.score(params, split, trainer.place, True)
    return {**trainer.evaluate(params, split), **scores.values}, scores


def describe(trainer: Trainer, say: Callable[[str], None] = log) -> None:
    """Logs what the run is about to do: its size, devices, sharding, data and number of steps."""
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
    rules = models.rules_of(trainer.task.model_config)
    if loose := without_rule(trainer.param_shapes, rules, trainer.config.mesh.rules):
        say(f"no sharding rule names {', '.join(loose)}: the largest dimension lies over fsdp")
    for line in trainer.task.report():
        say(line)
    steps = counted(trainer.steps, "step")
    asked, warmup = trainer.config.optimizer.warmup_steps, trainer.optimizer.warmup_steps
    if warmup != asked:
        say(
            f"optimizer.warmup_steps = {asked:,} is more than half of {steps}: the "
            f"warm-up takes {warmup:,}"
        )
    elif trainer.steps and warmup >= trainer.steps:
        say(
            f"the warm-up of {warmup:,} steps does not end before the run does: lower "
            "optimizer.warmup_steps, or raise steps or epochs"
        )
    if 0 < trainer.steps < FEW and trainer.config.epochs:
        say(
            f"{steps} {'is' if trainer.steps == 1 else 'are'} few to learn from: raise "
            "config.epochs, or make batches smaller (batch.rows, batch.tokens_per_batch)"
        )
    epoch = trainer.task.steps_per_epoch()
    rule = " (config.epochs decides, not config.steps)" if trainer.config.epochs else ""
    batches = counted(epoch, "batch")
    say(f"{steps} = {trainer.steps / epoch:.1f} epochs of {batches}{rule}")
