"""Mixers without softmax: linear attention, retention, gated linear attention, RWKV-4."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_lab.layers.mixing import NOTHING, Flow, Mixer, shifted
from transformer_lab.ops.positions import rope_frequencies, rotate
from transformer_lab.ops.scan import max_plus

LOWEST = -1e30  # stands for log 0: finite, so that differences of two are not NaN


class Linear(Mixer):
    """Linear attention: softmax(q k) replaced by phi(q) phi(k) (Katharopoulos 2020, eq. 5).

    phi is elu + 1 (eq. 7), relu, the exponential of each entry, or the second-order Taylor series
    of the exponential of the product (Arora 2024, section 4), whose keys have 1 + H + H^2 entries.
    """

    SETTINGS, HEADED = ("feature_map", "value_dim"), True

    @classmethod
    def weights(cls, cfg: Any) -> int:
        return 2 * cfg.width * cfg.heads * (cfg.head_dim + _value_dim(cfg))

    @classmethod
    def numbers(cls, cfg: Any) -> int:
        h = cfg.head_dim
        keys = 1 + h + h**2 if cfg.mixer.feature_map == "taylor" else h
        return cfg.heads * keys * (_value_dim(cfg) + 1)

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = NOTHING, state: Any = None):
        cfg, (b, t, _) = self.config, x.shape
        sizes = {"query": cfg.head_dim, "key": cfg.head_dim, "value": _value_dim(cfg)}
        query, key, value = (
            self.project(cfg.heads * size, name, name)(x).reshape(b, t, cfg.heads, size)
            for name, size in sizes.items()
        )
        query, key = (_features(cfg.mixer.feature_map, y.astype(jnp.float32)) for y in (query, key))
        ones = jnp.ones((b, t, cfg.heads, 1))
        value = jnp.concatenate([value.astype(jnp.float32), ones], axis=-1)
        out, state = self.scan(query, key, value, jnp.zeros((1, t, 1, 1)), state, flow)
        # The last value is 1, so that the last sum is the denominator, sum phi(q) phi(k).
        out = out[..., :-1] / jnp.maximum(out[..., -1:], 1e-6)
        out = out.reshape(b, t, -1).astype(x.dtype)
        return self.project(cfg.width, "out", "out")(out), state


def _features(name: str, x: Float[Array, "*b h"]) -> Float[Array, "*b f"]:
    if name == "elu":
        return jax.nn.elu(x) + 1
    if name == "relu":
        return jax.nn.relu(x)
    # Queries and keys by H^-1/4 each: their products are scaled by 1 / sqrt(H), as in softmax.
    x = x * x.shape[-1] ** -0.25
    if name == "exponential":
        return jnp.exp(x)
    # phi(q) phi(k) = 1 + q k + (q k)^2 / 2, the Taylor series of e^(q k).
    square = (x[..., None] * x[..., None, :]).reshape(*x.shape[:-1], -1) * 0.5**0.5
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, square], axis=-1)


def _value_dim(cfg: Any) -> int:
    return cfg.mixer.value_dim or cfg.head_dim


class GatedHeads(Mixer):
    """Heads of a decayed linear attention; each head's output is normalised by itself, and a swish
    gate of the input multiplies it."""

    SETTINGS, HEADED = ("value_dim", "norm_epsilon"), True

    @classmethod
    def weights(cls, cfg: Any) -> int:
        return cfg.width * cfg.heads * (2 * cfg.head_dim + 3 * _value_dim(cfg))

    @classmethod
    def numbers(cls, cfg: Any) -> int:
        return cfg.heads * cfg.head_dim * _value_dim(cfg)

    def heads(self, x, flow, state, log_decay, turn):
        """The output and the state; with `turn` queries and keys are rotated by their positions."""
        cfg, (b, t, _) = self.config, x.shape
        n, h, p = cfg.heads, cfg.head_dim, _value_dim(cfg)
        query, key = (
            self.project(n * h, name, name)(x).reshape(b, t, n, h).astype(jnp.float32)
            for name in ("query", "key")
        )
        value = self.project(n * p, "value", "value")(x).reshape(b, t, n, p).astype(jnp.float32)
        if turn:
            positions = jnp.arange(t) if flow.positions is None else flow.positions
            angles = rope_frequencies(h, cfg.rope_base)
            query, key = (
                jnp.swapaxes(rotate(jnp.swapaxes(y, 1, 2), positions, angles), 1, 2)
                for y in (query, key)
            )
        chunk = 16 if log_decay.shape[-1] > 1 else 0
        out, state = self.scan(query * h**-0.5, key, value, log_decay, state, flow, chunk=chunk)
        out = nn.RMSNorm(epsilon=cfg.mixer.norm_epsilon, name="head_norm")(out)
        gate = jax.nn.silu(self.project(n * p, "gate", "gate")(x))
        out = out.reshape(b, t, n * p).astype(x.dtype) * gate
        return self.project(cfg.width, "out", "out")(out), state


class Retention(GatedHeads):
    """Multi-scale retention (Sun 2023, eq. 5-8): heads with fixed decays 1 - 2^-(5 + head)."""

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = NOTHING, state: Any = None):
        decay = jnp.log1p(-(2.0 ** -(5.0 + jnp.arange(self.config.heads))))
        decay = jnp.tile(decay[:, None], (1, x.shape[1], 1, 1))
        return self.heads(x, flow, state, decay, turn=True)


class Gated(GatedHeads):
    """Gated linear attention (Yang 2023, eq. 3 and section 4.4).

    Each entry of the keys decays by its own factor, sigmoid(x W_1 W_2 + b)^(1/16), computed from
    the input.
    """

    SETTINGS = (*GatedHeads.SETTINGS, "gate_rank")

    @classmethod
    def weights(cls, cfg: Any) -> int:
        decays = cfg.mixer.gate_rank * (cfg.width + cfg.heads * cfg.head_dim)
        return super().weights(cfg) + decays

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = NOTHING, state: Any = None):
        cfg, (b, t, _) = self.config, x.shape
        inner = self.project(cfg.mixer.gate_rank, "decay_in")(x)
        decay = self.project(cfg.heads * cfg.head_dim, "decay_out", bias=True)(inner)
        decay = jax.nn.log_sigmoid(decay.astype(jnp.float32)) / 16
        decay = decay.reshape(b, t, cfg.heads, cfg.head_dim)
        return self.heads(x, flow, state, decay, turn=False)


class RWKV(Mixer):
    """The time mixing of RWKV-4 (Peng 2023, eq. 11-18).

    A channel's output at t is a gate times the mean of values v_i with weights e^(k_i - (t - 1 - i)
    w) for i < t and e^(u + k_t) for the present one. Decay w and bonus u are learned. Sums are
    divided by their largest exponent, so that none overflows.
    """

    SETTINGS = ("inner_width",)

    @classmethod
    def weights(cls, cfg: Any) -> int:
        return 4 * cfg.width * cfg.mixer.inner_width

    @classmethod
    def numbers(cls, cfg: Any) -> int:
        return 2 * cfg.mixer.inner_width

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = NOTHING, state: Any = None):
        cfg, (b, t, d) = self.config, x.shape
        before, top, sums = (None, None, None) if state is None else state
        past, before = shifted(x, before, flow)

        def mixed(name, width):
            share = self.param(f"{name}_mix", nn.initializers.constant(0.5), (width,))
            return (x * share + past * (1 - share)).astype(x.dtype)

        key, value, gate = (
            self.project(cfg.mixer.inner_width, name, name)(mixed(name, d))
            for name in ("key", "value", "receptance")
        )
        d = cfg.mixer.inner_width
        speed = self.param("log_decay", lambda key, s: jnp.linspace(-5.0, 3.0, s[0]), (d,))
        decay = flow.hide(jnp.broadcast_to(-jnp.exp(speed), (b, t, d)))
        bonus = self.param("bonus", nn.initializers.constant(math.log(0.3)), (d,))
        log_key = flow.hide(key.astype(jnp.float32), LOWEST)
        value = value.astype(jnp.float32)
        top = jnp.full((b, d), LOWEST) if top is None else top
        if flow.fresh is not None:
            decay = jnp.where(flow.fresh[..., None], LOWEST, decay)
        # All sums are kept divided by e^m_t, where m_t is their largest exponent so far.
        tops = max_plus(log_key, decay, top)
        earlier = jnp.concatenate([top[:, None], tops[:, :-1]], axis=1)
        # The sums after each step, then those before it.
        # Numerator and denominator are one recurrence, of the values (v, 1).
        ones = jnp.stack([value, jnp.ones_like(value)], axis=-1)
        write = jnp.exp(jnp.where(log_key > LOWEST, log_key - tops, -jnp.inf))[..., None]
        kept = jnp.minimum(earlier + decay - tops, 0.0)[..., None]
        sums = jnp.zeros((b, d, 1, 2)) if sums is None else sums
        query = jnp.ones((b, t, d, 1))
        after, last = self.scan(query, write, ones, kept, sums, flow, "steps", 16)
        past_sums = jnp.concatenate([sums[:, None, :, 0], after[:, :-1]], axis=1)
        if flow.fresh is not None:
            past_sums = jnp.where(flow.fresh[..., None, None], 0.0, past_sums)
            earlier = jnp.where(flow.fresh[..., None], LOWEST, earlier)
        # The present token has the weight e^(u + k_t), where the past ones have e^(k_i - decay).
        largest = jnp.maximum(earlier, bonus + log_key)
        old, new = jnp.exp(earlier - largest), jnp.exp(bonus + log_key - largest)
        total = old[..., None] * past_sums + new[..., None] * ones
        out = (jax.nn.sigmoid(gate) * (total[..., 0] / total[..., 1])).astype(x.dtype)
        return self.project(cfg.width, "out", "out")(out), (before, tops[:, -1], last)
