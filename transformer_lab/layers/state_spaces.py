"""State space models as mixers: S4D, Mamba and Mamba-2."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_lab.layers.block_config import MixerConfig
from transformer_lab.layers.mixing import NOTHING, Flow, Mixer
from transformer_lab.ops.activations import ACTIVATIONS
from transformer_lab.ops.scan import convolve


class S4D(Mixer):
    """A diagonal complex state space for each channel (Gu 2022, S4D-Lin; zero-order hold).

    Initially A = -1/2 + i pi n (eq. 9's approximation of HiPPO-LegS); B = 1, and C and the step
    sizes are learned; a gated linear layer then mixes the channels. `state` counts real numbers:
    state / 2 complex ones with their conjugates.
    """

    SETTINGS = ("state",)

    @classmethod
    def weights(cls, cfg: Any) -> int:
        return 2 * cfg.width * cfg.width

    @classmethod
    def numbers(cls, cfg: Any) -> int:
        return cfg.width * cfg.mixer.state

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = NOTHING, state: Any = None):
        cfg, (b, t, d) = self.config, x.shape
        mixer, n = cfg.mixer, max(cfg.mixer.state // 2, 1)
        normal = nn.initializers.normal(0.5**0.5)
        step = jnp.exp(self.param("log_step", _log_steps(mixer), (d,)))
        real = self.param("log_real", nn.initializers.constant(math.log(0.5)), (d, n))
        imaginary = self.param("imaginary", lambda key, shape: _angles(shape), (d, n))
        out_real, out_imaginary = (self.param(f"out_{p}", normal, (d, n)) for p in ("re", "im"))
        skip = self.param("skip", nn.initializers.normal(1.0), (d,))
        poles = -jnp.exp(real) + 1j * imaginary
        # Discretized: x_t = e^(A step) x_{t-1} + (e^(A step) - 1) / A * u_t, y = 2 Re(C x).
        decays = poles * step[:, None]  # their logarithms
        write = (jnp.exp(decays) - 1) / poles  # zero-order hold of B = 1
        key = jnp.broadcast_to(write, (b, t, d, n))
        read = jnp.broadcast_to(2 * (out_real + 1j * out_imaginary), (b, t, d, n))
        value = x.astype(jnp.float32)[..., None].astype(jnp.complex64)
        ones = jnp.ones((1, t, 1, 1))
        y, state = self.scan(read, key, value, ones, state, flow, "steps", 16, decays)
        y = jax.nn.gelu(y[..., 0].real + skip * x).astype(x.dtype)
        a, gate = jnp.split(self.project(2 * cfg.width, "out", "out", bias=True)(y), 2, axis=-1)
        return a * jax.nn.sigmoid(gate), state


def _angles(shape: tuple[int, int]) -> Array:
    return jnp.broadcast_to(math.pi * jnp.arange(shape[-1], dtype=jnp.float32), shape)


def _log_steps(mixer: MixerConfig):
    low, high = math.log(mixer.step_min), math.log(mixer.step_max)
    return lambda key, shape: jax.random.uniform(key, shape, minval=low, maxval=high)


def _step_bias(mixer: MixerConfig):
    """An initializer: softplus^-1 of step sizes, at least 1e-4, uniform in their logarithm."""

    def init(key, shape):
        step = jnp.maximum(jnp.exp(_log_steps(mixer)(key, shape)), 1e-4)
        # softplus^-1(y) = log(e^y - 1) = y + log(1 - e^-y), which does not overflow.
        return step + jnp.log(-jnp.expm1(-step))

    return init


class Selective(Mixer):
    """What Mamba and Mamba-2 share: a causal convolution of each channel, and a state that is the
    convolution's last inputs and a matrix [channels, state], in Mamba-2 one of each head."""

    SETTINGS = ("inner_width", "state", "convolution", "activation", "bias", "convolution_bias")

    @classmethod
    def numbers(cls, cfg: Any) -> int:
        return cfg.mixer.inner_width * cfg.mixer.state

    def convolved(self, x, before, flow):
        """The convolution with its activation, and the inputs that the next call needs."""
        mixer, shape = self.config.mixer, (self.config.mixer.convolution, x.shape[-1])
        init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", 0, (), 1)
        kernel = self.param("convolution_kernel", init, shape)
        x = flow.hide(x).astype(jnp.float32)
        out, before = convolve(x, kernel, before, flow.fresh)
        if mixer.convolution_bias:
            out = out + self.param("convolution_bias", nn.initializers.zeros, shape[1:])
        return flow.hide(ACTIVATIONS[mixer.activation](out)), before


class Mamba(Selective):
    """A selective state space (Gu 2023, algorithm 2, figure 3): step, input and output by token."""

    SETTINGS = (*Selective.SETTINGS, "step_rank", "inner_norms")

    @classmethod
    def weights(cls, cfg: Any) -> int:
        own = cfg.mixer
        return own.inner_width * (3 * cfg.width + 2 * own.step_rank + 2 * own.state)

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = NOTHING, state: Any = None):
        cfg = self.config
        mixer = cfg.mixer
        d, n, rank = mixer.inner_width, mixer.state, mixer.step_rank
        before, matrix = (None, None) if state is None else state
        inner, gate = jnp.split(self.project(2 * d, "in", "up", mixer.bias)(x), 2, axis=-1)
        inner, before = self.convolved(inner, before, flow)
        sizes = self.project(rank + 2 * n, "select")(inner).astype(jnp.float32)
        step, write, read = jnp.split(sizes, [rank, rank + n], axis=-1)
        if mixer.inner_norms:
            names = "step_norm", "write_norm", "read_norm"
            step, write, read = (
                nn.RMSNorm(epsilon=mixer.norm_epsilon, name=name)(y)
                for name, y in zip(names, (step, write, read), strict=True)
            )
        scale = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        kernel = self.param("step_kernel", scale, (rank, d))
        # S_t = e^(step A) S_{t-1} + step B_t x_t, y_t = C_t S_t + D x_t, with A = -exp(log_poles).
        step = jax.nn.softplus(step @ kernel + self.param("step_bias", _step_bias(mixer), (d,)))
        log_poles = self.param("log_poles", lambda key, s: jnp.log(1.0 + _numbers(s)), (d, n))
        skip = self.param("skip", nn.initializers.ones, (d,))
        key, query = write[:, :, None], read[:, :, None]  # one for all channels
        value = (step * inner)[..., None]
        poles = -jnp.exp(log_poles)
        y, matrix = self.scan(query, key, value, step[..., None], matrix, flow, "steps", 16, poles)
        y = y[..., 0] + skip * inner
        y = y.astype(x.dtype) * jax.nn.silu(gate)
        return self.project(cfg.width, "out", "out", mixer.bias)(y), (before, matrix)


def _numbers(shape: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(jnp.arange(shape[-1], dtype=jnp.float32), shape)


class Mamba2(Selective):
    """State space duality (Dao 2024, section 7.1, figure 6): heads with one decay each."""

    SETTINGS = (
        *Selective.SETTINGS, "state_heads", "state_groups", "norm_epsilon", "step_low", "step_high",
    )  # fmt: skip

    @classmethod
    def weights(cls, cfg: Any) -> int:
        own = cfg.mixer
        return cfg.width * (
            3 * own.inner_width + 2 * own.state_groups * own.state + own.state_heads
        )

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = NOTHING, state: Any = None):
        cfg, (b, t, _) = self.config, x.shape
        mixer = cfg.mixer
        d, n, h, g = mixer.inner_width, mixer.state, mixer.state_heads, mixer.state_groups
        before, matrix = (None, None) if state is None else state
        whole = self.project(2 * d + 2 * g * n + h, "in", "up", mixer.bias)(x)
        gate, inner, step = jnp.split(whole, [d, 2 * d + 2 * g * n], axis=-1)
        inner, before = self.convolved(inner, before, flow)
        value, write, read = jnp.split(inner, [d, d + g * n], axis=-1)
        key, query = (y.reshape(b, t, g, n) for y in (write, read))
        if g > 1:
            key, query = (jnp.repeat(y, h // g, axis=2) for y in (key, query))
        bias = self.param("step_bias", _step_bias(mixer), (h,))
        step = jax.nn.softplus(step.astype(jnp.float32) + bias)
        if mixer.step_low or mixer.step_high:
            step = jnp.clip(step, mixer.step_low, mixer.step_high or None)
        log_poles = self.param("log_poles", lambda key, s: jnp.log(1.0 + _numbers(s)), (h,))
        skip = self.param("skip", nn.initializers.ones, (h,))
        value = value.reshape(b, t, h, d // h)
        # S_t = e^(step A) S_{t-1} + B_t (step x_t)^T, y_t = C_t^T S_t, with A = -exp(log_poles)
        log_decay = (step * -jnp.exp(log_poles))[..., None]
        y, matrix = self.scan(query, key, value * step[..., None], log_decay, matrix, flow)
        y = (y + skip[:, None] * value).reshape(b, t, d).astype(x.dtype) * jax.nn.silu(gate)
        # Each group is normalised by itself (Dao 2024, section 8.2).
        norm = nn.RMSNorm(epsilon=mixer.norm_epsilon, use_scale=False)
        y = norm(y.reshape(b, t, g, d // g)).reshape(b, t, d)
        y = (y * self.param("scale", nn.initializers.ones, (d,))).astype(x.dtype)
        return self.project(cfg.width, "out", "out", mixer.bias)(y), (before, matrix)
