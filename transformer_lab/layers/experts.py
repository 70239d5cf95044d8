"""A feed-forward of many experts, of which only some work for a token."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_lab.errors import LabError, known
from transformer_lab.layers.told import tell
from transformer_lab.ops import experts as ops
from transformer_lab.ops.activations import ACTIVATIONS, GATED
from transformer_lab.ops.dropout import dropout

ROUTINGS = ("tokens", "experts")
WAYS = ("auto", "places", "sorted")


@dataclass(frozen=True)
class ExpertsConfig:
    """How many experts a feed-forward has, and how tokens come to them.

    Switch (Fedus 2021): top_k = 1, renormalize = False, capacity_factor = 1.25. GShard (Lepikhin
    2020): top_k = 2, capacity_factor = 2. Mixtral (Jiang 2024): top_k = 2, nothing dropped.
    DeepSeekMoE (Dai 2024): narrow experts, some of them shared. Expert choice (Zhou 2022): routing
    = "experts".
    """

    count: int = 8  # E
    width: int = 0  # F of an expert; 0: feed_forward_width
    top_k: int = 2  # K, experts of a token; of routing = "experts" their mean number
    routing: str = "tokens"  # tokens choose experts, or experts choose tokens
    renormalize: bool = True  # the weights of a token's experts sum to 1
    shared: int = 0  # experts more that work for every token (DeepSeekMoE)
    # An expert's places in a row, as a multiple of an even share of its tokens; 0: as many as wanted
    capacity_factor: float = 0.0
    capacity: int = 0  # the same as a number; 0: by the factor
    jitter: float = 0.0  # in training the router's input is multiplied by 1 +- this (Fedus 2021)
    router_bias: bool = False
    balance_loss: float = 0.01  # coefficients of the losses beside the task's (see `ops.experts`)
    z_loss: float = 0.001
    # LIMoE (Mustafa 2022, eq. 2-3): a token's distribution shall be sharp, the mean of all tokens
    # of a call (one modality) spread: coefficients, and the entropy from which on it is enough
    local_entropy: float = 0.0
    global_entropy: float = 0.0
    enough_entropy: float = 0.0  # nats
    way: str = "auto"  # places: einsum over an expert's places; sorted: tokens sorted by expert

    def __post_init__(self):
        known("model.experts.routing = ", self.routing, ROUTINGS)
        known("model.experts.way = ", self.way, WAYS)
        if self.count < 1 or not 1 <= self.top_k <= self.count:
            raise LabError(
                f"model.experts.top_k = {self.top_k} must be at least 1, and at most "
                f"model.experts.count = {self.count}"
            )
        for name in ("width", "shared", "capacity_factor", "capacity", "jitter"):
            if getattr(self, name) < 0:
                raise LabError(f"model.experts.{name} = {getattr(self, name)} must not be negative")
        if self.jitter >= 1:
            raise LabError(f"model.experts.jitter = {self.jitter} must be below 1")
        limited = self.capacity_factor or self.capacity
        if self.routing == "experts" and not limited:
            raise LabError('model.experts.routing = "experts" needs model.experts.capacity_factor')
        if (self.way == "sorted" and self.routing == "experts") or (
            self.way == "places" and not limited
        ):
            raise LabError(
                f'model.experts.way = "{self.way}" does not go with routing = "{self.routing}" and '
                f"capacity_factor = {self.capacity_factor}: leave it at auto"
            )

    def places(self, tokens: int) -> int | None:
        """An expert's places in a row of so many tokens; None: as many as wanted."""
        if self.capacity:
            return min(self.capacity, tokens)
        if not self.capacity_factor:
            return None
        return ops.capacity_of(tokens, self.count, self.top_k, self.capacity_factor)


class Experts(nn.Module):
    """sum_e g_e(x) expert_e(x) over the chosen experts, and all shared ones.

    Kernels are router [D, E], up and gate [E, D, F], down [E, F, D]; of the shared experts, which
    are one feed-forward of their joint width, `shared`. The router computes in float32.
    """

    config: Any  # a StackConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t d"],
        dropout_key: Key[Array, ""] | None = None,
        real: Bool[Array, "b t"] | None = None,
    ) -> Float[Array, "b t d"]:
        from transformer_lab.layers.basic import FeedForward

        cfg, own = self.config, self.config.experts
        e, d, f = own.count, x.shape[-1], own.width or cfg.feed_forward_width
        logits = self._router(x, dropout_key)
        probabilities = jax.nn.softmax(logits, axis=-1)
        kernels = {
            name: self.param(name, _init(cfg, role), shape)
            for name, role, shape in (
                ("up", "up", (e, d, f)), ("gate", "gate", (e, d, f)), ("down", "down", (e, f, d)),
            )
            if name != "gate" or cfg.activation in GATED
        }  # fmt: skip
        key = None if dropout_key is None else jax.random.fold_in(dropout_key, 1)
        act = partial(_hidden, cfg, key)
        arguments = kernels["up"], kernels.get("gate"), kernels["down"], act
        capacity = own.places(x.shape[1])
        if own.routing == "experts":
            weights = ops.choose_tokens(probabilities, capacity, real)
            out = ops.by_places(x, weights, *arguments)
            taken = asked = (weights > 0).any(axis=-1) / own.top_k
        else:
            routes = ops.choose_experts(
                probabilities, own.top_k, capacity, real, renormalize=own.renormalize
            )
            asked = jax.nn.one_hot(routes.expert, e).sum(axis=2) / own.top_k
            kept = (routes.weight > 0)[..., None]
            taken = (jax.nn.one_hot(routes.expert, e) * kept).sum(axis=2) / own.top_k
            if own.way == "places" or (own.way == "auto" and capacity is not None):
                out = ops.by_places(x, ops.places(routes, e, capacity), *arguments)
            else:
                out = ops.sorted_by_expert(x, routes, *arguments)
        self._tell(ops.balance_of(logits, probabilities, taken, asked, real), probabilities, real)
        if own.shared:
            shared = replace(cfg, feed_forward_width=own.shared * f)
            out = out + FeedForward(shared, name="shared")(x, dropout_key)
        return out.astype(x.dtype)

    def _router(self, x, dropout_key):
        own, wide = self.config.experts, x.astype(jnp.float32)
        if own.jitter and dropout_key is not None:
            key = jax.random.fold_in(dropout_key, 0)
            noise = jax.random.uniform(key, x.shape, minval=1 - own.jitter, maxval=1 + own.jitter)
            wide = wide * noise
        kernel = self.param("router", nn.initializers.normal(0.02), (x.shape[-1], own.count))
        logits = jnp.einsum("btd,de->bte", wide, kernel, precision="highest")
        if own.router_bias:
            logits = logits + self.param("router_bias", nn.initializers.zeros, (own.count,))
        return logits

    def _tell(self, found, probabilities, real):
        own = self.config.experts
        sums = {
            "expert_balance": (found.balance, own.balance_loss),
            "router_z": (found.z, own.z_loss),
            "router_entropy": (found.entropy, own.local_entropy),
            "expert_load_variation": (found.variation, 0.0),
            "expert_dropped": (found.dropped, 0.0),
        }
        for name, (total, coefficient) in sums.items():
            tell(self, name, total, found.tokens, coefficient)
        if own.global_entropy:
            weight = 1.0 if real is None else real[..., None]
            mean = (probabilities * weight).sum((0, 1)) / jnp.maximum(found.tokens, 1.0)
            entropy = -(mean * jnp.log(jnp.maximum(mean, 1e-30))).sum()
            short = jnp.maximum(own.enough_entropy - entropy, 0.0) if own.enough_entropy else -entropy
            tell(self, "router_spread", short * found.tokens, found.tokens, own.global_entropy)


def _hidden(cfg, key, up, gate):
    """An expert's hidden units of its products."""
    if gate is not None:
        hidden = ACTIVATIONS[GATED[cfg.activation]](gate) * up
    else:
        hidden = ACTIVATIONS[cfg.activation](up)
    return dropout(hidden, cfg.feed_forward_dropout, key)


def _init(cfg, role):
    """As a kernel of the stack, for each expert by itself."""
    gain = cfg.init_gain(role)
    if cfg.kernel_init == "normal":
        return nn.initializers.normal(cfg.init_std * gain)
    return nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform", batch_axis=(0,))
