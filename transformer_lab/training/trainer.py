"""A task with its compiled steps on a mesh, for the training loop and for opened runs."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_lab import models
from transformer_lab.ops.losses import perplexity
from transformer_lab.ops.stacked import stack_layers, unstack_layers
from transformer_lab.tasks.base import Params, Place, Task
from transformer_lab.terminal import Waiting
from transformer_lab.training.adapting import assemble
from transformer_lab.training.config import RunConfig
from transformer_lab.training.mesh import batch_sharding, placer, shardings
from transformer_lab.training.optimizer import fitted, make_optimizer, schedule
from transformer_lab.training.state import TrainState, init_state, make_train_step, split_params


def _placed(shapes: Any, where: Any) -> Any:
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, where
    )


class Trainer:
    """A task with its compiled train and evaluation steps, on a mesh of devices."""

    def __init__(self, config: RunConfig, task: Task, mesh: Mesh):
        self.config, self.task, self.mesh = config, task, mesh
        self.steps = config.steps
        if config.epochs is not None:
            self.steps = math.ceil(config.epochs * task.steps_per_epoch())
        self.optimizer = config.optimizer
        # A schedule that goes on for ever has no other warm-up in a run that may be continued.
        if config.epochs is not None or config.optimizer.schedule in ("cosine", "linear"):
            self.optimizer = fitted(config.optimizer, self.steps)
        rate = schedule(self.optimizer, self.steps)
        optimizer = make_optimizer(self.optimizer, rate)
        adapt, self.adapted = config.adapt, config.adapt.method != "full"
        averaged = config.ema_decay > 0
        init = lambda: init_state(task.init, optimizer, config.seed, adapt, averaged)  # noqa: E731
        # Layers train stacked where all of them do, by an optimizer that treats each alike.
        whole = not self.adapted and config.optimizer.name != "adafactor"
        stack = lambda state: stack_layers(state, task.model_config) if whole else state  # noqa: E731
        shapes = jax.eval_shape(init)  # canonical, as in checkpoints and everywhere but in the step
        rules = config.mesh.rules, models.rules_of(task.model_config)
        self.state_shardings = shardings(shapes, mesh, *rules)
        self.param_shardings = self.state_shardings.params  # for the whole model
        self.param_shapes = shapes.params
        if self.adapted:
            self.param_shapes = jax.eval_shape(task.init, jax.random.key(0))
            whole = {"params": self.param_shapes}  # with the paths that they have in a state
            self.param_shardings = shardings(whole, mesh, *rules)["params"]
        self.abstract_state = _placed(shapes, self.state_shardings)
        shapes = jax.eval_shape(stack, shapes)
        inner = shardings(shapes, mesh, *rules)
        self.step_state = _placed(shapes, inner)  # the step's argument, as shapes
        self.stacked = jax.tree.structure(shapes) != jax.tree.structure(self.abstract_state)
        self.init = jax.jit(lambda: stack(init()), out_shardings=inner)
        self._stack = jax.jit(stack, out_shardings=inner)
        self._unstack = jax.jit(unstack_layers, out_shardings=self.state_shardings)
        self._unstack_params = jax.jit(unstack_layers, out_shardings=self.state_shardings.params)
        self.place: Place = placer(mesh)
        step = make_train_step(
            task.loss, optimizer, rate, config.seed, config.micro_batches, mesh, adapt,
            config.ema_decay,
        )  # fmt: skip
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
        """The signal of this process (0: none), which `train_step` takes if there are several."""
        if jax.process_count() > 1 and number not in self._votes:
            sharding = NamedSharding(self.mesh, P(self.mesh.axis_names))
            own = lambda _: np.full(1, number, np.int32)  # noqa: E731
            vote = jax.make_array_from_callback((self.mesh.size,), sharding, own)
            self._votes[number] = (vote,)
        return self._votes.get(number, ())

    def stack(self, state: TrainState) -> TrainState:
        """A canonical state in the form that the step takes, with equal layers stacked."""
        return self._stack(state) if self.stacked else state

    def canonical(self, state: TrainState) -> TrainState:
        """The state in the form in which it is stored, each layer by itself."""
        return self._unstack(state) if self.stacked else state

    def with_params(self, state: TrainState, params: Params) -> TrainState:
        """The state with other parameters of the whole model, laid over the mesh."""
        params = jax.device_put(params, self.param_shardings)
        trained, frozen = self._split(params) if self.adapted else (params, {})
        average = jax.tree.map(jnp.copy, trained) if state.average else {}
        state = self.canonical(state).replace(params=trained, frozen=frozen, average=average)
        return self.stack(state)

    def whole(self, state: TrainState) -> Params:
        """The model's parameters for evaluation and decoding, or their moving average if kept."""
        params = state.average or state.params
        if self.adapted:
            return self._assemble(params, state.frozen)
        known = jax.tree.structure(params) == jax.tree.structure(self.param_shapes)
        return params if known else self._unstack_params(params)

    def evaluate(self, params: Params, split: str) -> dict[str, float]:
        """The metrics over all examples of a split, summed and divided once; "loss" in nats."""
        sums: dict[str, np.ndarray] = {}
        with Waiting(f"scores batches of {split}") as waiting:
            batches = self.task.eval_batches(split)
            results = [self.eval_step(params, self.place(batch)) for batch in batches]
            waiting.total = len(results)
            for pairs in results:  # which are computed only now
                for name, pair in pairs.items():
                    sums[name] = sums.get(name, 0.0) + np.asarray(pair, np.float64)
                waiting.done += 1
        values = {name: float(total / weight) for name, (total, weight) in sums.items() if weight}
        if "nll" in values:
            values["perplexity"] = perplexity(values.pop("nll"))
        return values


def _voting(step: Callable) -> Callable:
    """The step with one more argument, a number a device; the largest is its metric "stop".

    So all processes learn at the same step, without waiting, of a signal that one of them received.
    """

    def voting(state, batch, votes):
        state, metrics = step(state, batch)
        return state, {**metrics, "stop": votes.max()}

    return voting
