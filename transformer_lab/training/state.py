"""The train state and the two compiled steps."""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from transformer_lab.ops.losses import Pair, add_pairs, ratio
from transformer_lab.training.adapting import assemble, split
from transformer_lab.training.config import AdaptConfig
from transformer_lab.training.mesh import BATCH_AXES

ADAPT = 0xADA97  # folded into keys: the draws of an adapter are none of the model's
FULL = AdaptConfig()
Loss = Callable[[Any, dict[str, Array], Array], dict[str, Pair]]


@flax.struct.dataclass
class TrainState:
    """All that a step changes, and the frozen leaves that it does not."""

    step: Any  # int32 scalar; Any, since trees of shapes and shardings take this form as well
    params: Any  # that train
    opt_state: Any
    frozen: Any = flax.struct.field(default_factory=dict)


def init_state(
    init: Callable[[Array], Any],
    optimizer: optax.GradientTransformation,
    seed: int,
    adapt: AdaptConfig = FULL,
) -> TrainState:
    """The state of step 0, a function of the seed."""
    params, frozen = split_params(init(jax.random.key(seed)), seed, adapt)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), frozen)


def split_params(params: Any, seed: int, adapt: AdaptConfig) -> tuple[Any, Any]:
    """What trains and what is frozen, a function of the parameters and the seed."""
    return split(params, adapt, jax.random.fold_in(jax.random.key(seed), ADAPT))


def split_rows(batch: dict[str, Array], parts: int, mesh: Mesh) -> dict[str, Array]:
    """[R, ...] -> [parts, R / parts, ...]; part j takes rows j, j + parts, ..., so that each
    device's rows stay on it."""
    sharding = NamedSharding(mesh, P(None, BATCH_AXES))

    def split(x):
        x = jnp.moveaxis(x.reshape(-1, parts, *x.shape[1:]), 1, 0)
        return jax.lax.with_sharding_constraint(x, sharding)

    return jax.tree.map(split, batch)


def loss_and_gradient(
    loss: Loss, params: Any, batch: dict[str, Array], key: Array, parts: int, mesh: Mesh
) -> tuple[dict[str, Pair], Any]:
    """Metric sums, and the gradient of sum(loss) / sum(weight) over the whole batch.

    The division comes after all micro-batches, so their number and their padding change nothing.
    """

    def of_part(part, part_key):
        def total(params):
            pairs = loss(params, part, part_key)
            return pairs["loss"][0], pairs

        return jax.grad(total, has_aux=True)(params)

    if parts == 1:
        gradient, pairs = of_part(batch, jax.random.fold_in(key, 0))
    else:
        micro = split_rows(batch, parts, mesh)
        shapes = jax.eval_shape(of_part, jax.tree.map(lambda x: x[0], micro), key)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        def body(carry, xs):
            part, i = xs
            gradient, pairs = of_part(part, jax.random.fold_in(key, i))
            return (jax.tree.map(jnp.add, carry[0], gradient), add_pairs(carry[1], pairs)), None

        (gradient, pairs), _ = jax.lax.scan(body, zeros, (micro, jnp.arange(parts)))
    weight = pairs["loss"][1]
    scale = jnp.where(weight > 0, 1.0 / jnp.maximum(weight, 1.0), 0.0)
    return pairs, jax.tree.map(lambda g: g * scale, gradient)


def make_train_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    rate: Callable[[Array], Array],
    seed: int,
    micro_batches: int,
    mesh: Mesh,
    adapt: AdaptConfig = FULL,
) -> Callable[[TrainState, dict[str, Array]], tuple[TrainState, dict[str, Array]]]:
    """step(state, batch) -> (state, {"loss", "grad_norm", "learning_rate", "weight", ...})."""

    def step(state, batch):
        def whole_loss(params, part, key):
            params = assemble(params, state.frozen, adapt, jax.random.fold_in(key, ADAPT))
            return loss(params, part, key)

        key = jax.random.fold_in(jax.random.key(seed), state.step)
        args = (state.params, batch, key, micro_batches, mesh)
        pairs, gradient = loss_and_gradient(whole_loss, *args)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {name: ratio(pair) for name, pair in pairs.items()}
        metrics["weight"] = pairs["loss"][1]
        metrics["grad_norm"] = optax.tree.norm(gradient)
        metrics["learning_rate"] = rate(state.step + 1)
        return TrainState(state.step + 1, params, opt_state, state.frozen), metrics

    return step
