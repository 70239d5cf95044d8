"""The train state, and the train step: loss, gradient over micro-batches, update."""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from transformer_lab.errors import LabError
from transformer_lab.models import listened
from transformer_lab.ops.layout import ROW_AXES
from transformer_lab.ops.losses import STATISTICS, Pair, ratio
from transformer_lab.tasks.base import Joint, learned
from transformer_lab.training.adapting import assemble, split
from transformer_lab.training.config import AdaptConfig

ADAPT = 0xADA97  # folded into the key, so that adapters and the model draw different numbers
FULL = AdaptConfig()
Loss = Callable[[Any, dict[str, Array], Array], dict[str, Pair]]


@flax.struct.dataclass
class TrainState:
    """All that a step changes, and the frozen parameters, which it does not."""

    step: Any  # int32 scalar; Any, since trees of shapes and shardings take this form as well
    params: Any  # trained parameters, and running statistics
    opt_state: Any
    frozen: Any = flax.struct.field(default_factory=dict)
    average: Any = flax.struct.field(default_factory=dict)  # moving average of params, or empty


def init_state(
    init: Callable[[Array], Any],
    optimizer: optax.GradientTransformation,
    seed: int,
    adapt: AdaptConfig = FULL,
    averaged: bool = False,
) -> TrainState:
    """The state at step 0, determined by the seed; `averaged`: with a moving average."""
    params, frozen = split_params(init(jax.random.key(seed)), seed, adapt)
    moments, average = optimizer.init(learned(params)), params if averaged else {}
    return TrainState(jnp.zeros((), jnp.int32), params, moments, frozen, average)


def moving_average(old: Any, new: Any, step: Array, decay: float) -> Any:
    """old + (1 - d) (new - old) for each array, with d = min(decay, (1 + step) / (10 + step)).

    The first steps, counted from 1, are forgotten faster, so that a short run's average is not
    dominated by its random start: the rule of TensorFlow's `ExponentialMovingAverage`.
    """
    # d is 2/11 in the first step, 0.9 after 80 steps.
    decay = jnp.minimum(decay, (1 + step) / (10 + step))
    return jax.tree.map(lambda a, b: a + ((1 - decay) * (b - a)).astype(a.dtype), old, new)


def split_params(params: Any, seed: int, adapt: AdaptConfig) -> tuple[Any, Any]:
    """The trained and the frozen parameters, determined by the parameters and the seed."""
    return split(params, adapt, jax.random.fold_in(jax.random.key(seed), ADAPT))


def split_rows(batch: dict[str, Array], parts: int, mesh: Mesh) -> dict[str, Array]:
    """Cuts a batch into micro-batches: [R, ...] -> [parts, R / parts, ...]. Part j takes examples
    j, j + parts, ..., so that each device's examples stay on it."""
    sharding = NamedSharding(mesh, P(None, ROW_AXES))

    def split(x):
        x = jnp.moveaxis(x.reshape(-1, parts, *x.shape[1:]), 1, 0)
        return jax.lax.with_sharding_constraint(x, sharding)

    return jax.tree.map(split, batch)


def join_rows(parts: Array) -> Array:
    """The inverse of `split_rows`: [parts, R / parts, ...] -> [R, ...]."""
    return jnp.moveaxis(parts, 0, 1).reshape(-1, *parts.shape[2:])


def loss_and_gradient(
    loss: Loss, params: Any, batch: dict[str, Array], key: Array, parts: int, mesh: Mesh
) -> tuple[dict[str, Any], Any]:
    """Metric sums, and the gradient of sum(loss) / sum(weight) over the whole batch.

    Losses that the model tells are included. New running statistics are under `batch_stats`.
    Divisions come after all micro-batches, so their number and their padding change nothing.
    """
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        how = _joint_sums if parts > 1 and isinstance(loss, Joint) else _sums
        pairs, told, gradient = how(loss, params, batch, key, parts, mesh)
    weight = pairs["loss"][1]
    scale = jnp.where(weight > 0, 1.0 / jnp.maximum(weight, 1.0), 0.0)
    if twice := pairs.keys() & told["losses"].keys():
        raise LabError(
            f"the model tells {sorted(twice)}, which are names of the task's own metrics"
        )
    pairs |= {name: found[:2] for name, found in told["losses"].items()}
    statistics = {STATISTICS: told["statistics"]} if told["statistics"] else {}
    return pairs | statistics, jax.tree.map(lambda g: g * scale, gradient)


def _shares(pairs, told):
    """The factors on told losses, so that a later division by the loss's weight is by their own."""
    weight = pairs["loss"][1]
    share = lambda own: jax.lax.stop_gradient(ratio((weight, own)))  # noqa: E731
    return {name: share(own) for name, (_, own, _) in told["losses"].items()}


def _objective(pairs, told, shares):
    """The sum over one micro-batch whose gradient is taken: the loss and the scaled told losses."""
    return sum((told["losses"][name][2] * shares[name] for name in shares), pairs["loss"][0])


def _sums(loss, params, batch, key, parts, mesh):
    """Metric sums, what was told, and the gradient, one micro-batch after the other."""
    hear = listened(loss)

    def of_part(part, part_key, shares=None):
        def total(params):
            pairs, told = hear(params, part, part_key)
            own = _shares(pairs, told) if shares is None else shares
            return _objective(pairs, told, own), (pairs, told)

        return jax.grad(total, has_aux=True)(params)

    if parts == 1:
        gradient, found = of_part(batch, jax.random.fold_in(key, 0))
        return *found, gradient
    micro = split_rows(batch, parts, mesh)
    shapes = jax.eval_shape(of_part, jax.tree.map(lambda x: x[0], micro), key)
    shares = {}
    if shapes[1][1]["losses"]:
        # Weights are known beforehand, from the batch alone: no more than that is computed here.
        each = lambda xs: hear(params, xs[0], jax.random.fold_in(key, xs[1]))  # noqa: E731
        whole = jax.lax.map(each, (micro, jnp.arange(parts)))
        shares = _shares(*jax.tree.map(lambda x: x.sum(axis=0), whole))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def body(carry, xs):
        part, i = xs
        new = of_part(part, jax.random.fold_in(key, i), shares)
        return jax.tree.map(jnp.add, carry, new), None

    (gradient, found), _ = jax.lax.scan(body, zeros, (micro, jnp.arange(parts)))
    return *found, gradient


def _joint_sums(loss: Joint, params, batch, key, parts, mesh):
    """The same for a loss that compares all examples; one micro-batch's activations are kept.

    First the vectors of all micro-batches are computed, then the loss's gradient by the vectors,
    then with it each micro-batch's gradient by the parameters.
    """
    micro = split_rows(batch, parts, mesh), jax.random.split(key, parts)
    hear = listened(loss.embed)
    vectors, told = jax.lax.map(lambda xs: hear(params, *xs), micro)
    told = jax.tree.map(lambda x: x.sum(axis=0), told)

    def total(params, vectors):
        whole = jax.tree.map(join_rows, vectors)
        pairs = loss.compare(params, whole, batch)
        return pairs["loss"][0], pairs

    (gradient, inner), pairs = jax.grad(total, (0, 1), has_aux=True)(params, vectors)
    shares = _shares(pairs, told)

    def embed(params, part):
        # The told losses depend on the parameters directly, the main one through the vectors.
        found, heard = hear(params, *part)
        return found, [heard["losses"][name][2] for name in shares]

    def body(gradient, xs):
        part, own = xs
        _, back = jax.vjp(lambda params: embed(params, part), params)
        return jax.tree.map(jnp.add, gradient, back((own, list(shares.values())))[0]), None

    return pairs, told, jax.lax.scan(body, gradient, (micro, inner))[0]


def renewed(old: Any, new: Any) -> Any:
    """The running statistics after a step: the means of those in `new`, as (total, weight)."""
    if isinstance(old, dict):
        return {name: renewed(x, new[name]) if name in new else x for name, x in old.items()}
    total, weight = new
    weight = weight.reshape(*weight.shape, *(1,) * (total.ndim - weight.ndim))
    return jnp.where(weight > 0, total / jnp.maximum(weight, 1), old)


def make_train_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    rate: Callable[[Array], Array],
    seed: int,
    micro_batches: int,
    mesh: Mesh,
    adapt: AdaptConfig = FULL,
    ema_decay: float = 0.0,
) -> Callable[[TrainState, dict[str, Array]], tuple[TrainState, dict[str, Array]]]:
    """The function step(state, batch) -> (state, metrics), to be compiled. Metrics are the task's,
    and "grad_norm", "learning_rate" and "weight", the loss's."""

    def step(state, batch):
        # Randomness follows from seed and step alone, so that a resumed run draws the same.
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        trained = learned(state.params)
        statistics = {name: state.params[name] for name in state.params.keys() - trained.keys()}

        def whole(trained, key):
            dropout_key = jax.random.fold_in(key, ADAPT)
            return assemble(trained | statistics, state.frozen, adapt, dropout_key)

        def whole_loss(params, part, key):
            return loss(whole(params, key), part, key)

        if isinstance(loss, Joint):
            whole_loss = Joint(
                lambda params, part, key: loss.embed(whole(params, key), part, key),
                lambda params, vectors, batch: loss.compare(whole(params, key), vectors, batch),
            )
        pairs, gradient = loss_and_gradient(whole_loss, trained, batch, key, micro_batches, mesh)
        updates, opt_state = optimizer.update(gradient, state.opt_state, trained)
        params = optax.apply_updates(trained, updates) | statistics
        if STATISTICS in pairs:
            params[STATISTICS] = renewed(statistics[STATISTICS], pairs.pop(STATISTICS))
        metrics = {name: ratio(pair) for name, pair in pairs.items()}
        metrics["weight"] = pairs["loss"][1]
        metrics["grad_norm"] = optax.tree.norm(gradient)
        metrics["learning_rate"] = rate(state.step + 1)
        count, average = state.step + 1, state.average
        if ema_decay:
            average = moving_average(average, params, count, ema_decay)
        return TrainState(count, params, opt_state, state.frozen, average), metrics

    return step
