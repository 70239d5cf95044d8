"""A feed-forward of many experts, only some of which work for a token."""

from dataclasses import replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_lab.layers.basic import FeedForward
from transformer_lab.layers.told import tell
from transformer_lab.ops import experts as ops
from transformer_lab.ops.activations import ACTIVATIONS, GATED


class Experts(nn.Module):
    """sum_e g_e(x) expert_e(x) over a token's chosen experts, and all shared ones.

    Kernels are router [D, E], up and gate [E, D, F], down [E, F, D], and those of `shared`, one
    feed-forward of the shared experts' joint width. The router computes in float32.
    """

    config: Any  # a StackConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t d"],
        dropout_key: Key[Array, ""] | None = None,
        real: Bool[Array, "b t"] | None = None,
    ) -> Float[Array, "b t d"]:
        own = self.config.experts
        cfg = replace(self.config, activation=own.activation or self.config.activation)
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
        act = partial(_hidden, cfg)
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
            # Without a capacity, sorting does only the work of the chosen experts.
            # A single position, as in decoding, needs one slot an expert; and the beams' vmap works
            # with einsum, but not with `ragged_dot`.
            alone = x.shape[1] == 1
            if alone or own.way == "places" or (own.way == "auto" and capacity is not None):
                out = ops.by_places(x, ops.places(routes, e, capacity or 1), *arguments)
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
        # Rounding here would change which experts a token goes to.
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
            tell(self, own.label + name, total, found.tokens, coefficient)
        if own.global_entropy:
            weight = 1.0 if real is None else real[..., None]
            mean = (probabilities * weight).sum((0, 1)) / jnp.maximum(found.tokens, 1.0)
            entropy = -(mean * jnp.log(jnp.maximum(mean, 1e-30))).sum()
            short = (
                jnp.maximum(own.enough_entropy - entropy, 0.0) if own.enough_entropy else -entropy
            )
            spread = own.label + "router_spread"
            tell(self, spread, short * found.tokens, found.tokens, own.global_entropy)


def _hidden(cfg, up, gate):
    """An expert's hidden units: act(up), or act(gate) * up where it is gated."""
    if gate is None:
        return ACTIVATIONS[cfg.activation](up)
    return ACTIVATIONS[GATED[cfg.activation]](gate) * up


def _init(cfg, role):
    """The initializer of the experts' kernels, which draws each expert as a kernel of the stack."""
    gain = cfg.init_gain(role)
    if cfg.kernel_init == "normal":
        return nn.initializers.normal(cfg.init_std * gain)
    return nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform", batch_axis=(0,))
