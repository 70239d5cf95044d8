"""The one channel from a module, at any depth, to the trainer: losses and running statistics.

A module calls `tell` with the (sum, weight) of a loss or a metric, or `renew` with the new value of
a running statistic. Both put it into a Flax collection, which passes through `nn.remat` and
`layers.scanned`; `models.model.Model` takes it out when a train step listens (`listened`). In any
other call the collections are closed, so that evaluation and decoding compute none of it.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import reduce
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_lab.ops.losses import STATISTICS

TOLD, RENEWED = "told", "renewed"  # the collections of losses, and of new running statistics
COLLECTIONS = (TOLD, RENEWED)
Told = dict[str, Any]  # `losses`: name -> (total, weight, scaled total); `statistics`: new ones
_heard: ContextVar[list[Told] | None] = ContextVar("heard", default=None)


def tell(
    module: nn.Module,
    name: str,
    total: Float[Array, ""],
    weight: Float[Array, ""] | float,
    coefficient: float = 0.0,
) -> None:
    """Hands the trainer a sum over a batch and its weight, such as the number of real tokens.

    All that is told under one name is added up, over modules, layers, micro-batches and devices,
    before total / weight is reported as a metric of that name. `coefficient` times that quotient is
    added to the loss that the optimizer lowers. The weight must depend on the batch alone.
    """
    total, weight = jnp.asarray(total, jnp.float32), jnp.asarray(weight, jnp.float32)
    put(module, TOLD, name, (total, weight, coefficient * total))


def tell_of_task(
    name: str, total: Float[Array, ""], weight: Float[Array, ""], coefficient: float
) -> None:
    """The same for a part of a task's own loss that is divided by another weight than the rest, as
    a detector's boxes by the number of objects. Only a listening train step hears it."""
    if listening():
        told = total, weight, coefficient * total
        _heard.get().append({"losses": {name: told}, "statistics": {}})


def running(module: nn.Module, name: str, init: Callable[[], Array]) -> Array:
    """The value of a running statistic; `init` makes the first one. It is stored among the
    parameters under `batch_stats`, and no gradient trains it."""
    return module.variable(STATISTICS, name, init).value


def renew(module: nn.Module, name: str, value: Array, weight: Float[Array, ""]) -> None:
    """Hands the trainer the new value of a running statistic, from this call's examples.

    The value after the step is the mean over all micro-batches, weighted by `weight`, the number of
    this call's real examples; where that is 0 altogether the old value stays.
    """
    put(module, RENEWED, name, (value * weight, weight))


def put(module: nn.Module, collection: str, name: str, value: Any) -> None:
    """Adds a tree of arrays to the value of that name in a module's collection, if it is open."""
    if module.is_mutable_collection(collection) and not module.is_initializing():
        old = module.get_variable(collection, name)
        module.put_variable(collection, name, value if old is None else added(old, value))


def added(a: Any, b: Any) -> Any:
    """The sum of two nested dictionaries of arrays; keys that only one of them has are kept."""
    if isinstance(a, Mapping):
        both = {k: added(a[k], b[k]) for k in a.keys() & b.keys()}
        return {**a, **b, **both}
    return jax.tree.map(jnp.add, a, b)


def by_name(told: Mapping[str, Any]) -> dict[str, tuple[Array, Array, Array]]:
    """The sums of a `told` collection over all modules: name -> (total, weight, scaled total)."""
    found: dict[str, Any] = {}
    for name, value in told.items():
        found = added(found, by_name(value) if isinstance(value, Mapping) else {name: value})
    return found


def listened(function: Callable[..., Any]) -> Callable[..., tuple[Any, Told]]:
    """The function with a second result: what the models that it calls have told, added up.

    It must call them in its own trace: not inside a `jax.jit`, `vmap` or `scan` of its own.
    """

    def call(*args: Any) -> tuple[Any, Told]:
        heard: list[Told] = []
        before = _heard.set(heard)
        try:
            out = function(*args)
        finally:
            _heard.reset(before)
        return out, reduce(added, heard, {"losses": {}, "statistics": {}})

    return call


def listening() -> bool:
    """Whether a function wrapped by `listened` is being traced."""
    return _heard.get() is not None


def hear(collections: dict[str, Any]) -> None:
    """Hands the listening function the losses and statistics in the collections of a call."""
    losses, statistics = by_name(collections.pop(TOLD, {})), collections.pop(RENEWED, {})
    _heard.get().append({"losses": losses, "statistics": statistics})


class BatchNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias by channel (Ioffe 2015, algorithm 1).

    In training the moments are those of the batch's real examples, or real positions (`rows`), and
    the running ones move towards them: new = momentum * old + (1 - momentum) * batch. In evaluation
    the running ones are used. A batch of padding alone takes its own moments, with weight 0. All is
    in float32.
    """

    momentum: float
    epsilon: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self, x: Float[Array, "b *shape c"], training: bool, rows: Bool[Array, "b *_"] | None = None
    ) -> Float[Array, "b *shape c"]:
        channels = x.shape[-1:]
        mean = running(self, "mean", lambda: jnp.zeros(channels))
        variance = running(self, "var", lambda: jnp.ones(channels))
        if training:
            mask, weight = None, jnp.float32(len(x))
            if rows is not None:
                # If all is padding, all rows count, or the mean would be 0 / 0.
                mask = (rows | ~rows.any()).reshape(*rows.shape, *(1,) * (x.ndim - rows.ndim))
                weight = rows.sum(dtype=jnp.float32)
            axes, exact = tuple(range(x.ndim - 1)), x.astype(jnp.float32)
            moved = lambda old, new: self.momentum * old + (1 - self.momentum) * new  # noqa: E731
            old = mean, variance
            mean = exact.mean(axes, where=mask)
            variance = jnp.square(exact - mean).mean(axes, where=mask)
            renew(self, "mean", moved(old[0], mean), weight)
            renew(self, "var", moved(old[1], variance), weight)
        scale = self.param("scale", nn.initializers.ones, channels)
        bias = self.param("bias", nn.initializers.zeros, channels)
        out = (x - mean) * (jax.lax.rsqrt(variance + self.epsilon) * scale) + bias
        return out.astype(self.dtype)
