"""What may stand in attention's place in a block: linear attention and state spaces.

Each mixes the positions of a sequence at a cost a position that does not depend on the length, and
carries a state of constant size. One call serves training, the first pass over a prompt and each
new position: it takes the state before the first of T positions (None: nothing stood before them)
and returns the state after the last, so that any cut of a sequence into calls gives the same
numbers.

    real   bool [B, T], False where a position is padding, which leaves every state as it is
    fresh  bool [B, T], True where a document of a packed row begins, which starts from nothing
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_lab.errors import LabError, known
from transformer_lab.layers.basic import dense
from transformer_lab.ops.positions import rope_frequencies, rotate
from transformer_lab.ops.scan import WAYS, convolve, max_plus, recurrence

MAPS = ("elu", "relu", "exponential", "taylor")
LOWEST = -1e30  # a logarithm of nothing that differences of logarithms survive


@dataclass(frozen=True)
class MixerConfig:
    """Which mixer, and its sizes; of those that it does not have, nothing is read."""

    kind: str = "attention"  # attention, or a name in MIXERS
    feature_map: str = "elu"  # of linear: elu + 1, relu, exponential or the softmax's Taylor series
    value_dim: int = 0  # of a head of linear, retention and gated; 0: as head_dim
    gate_rank: int = 16  # of gated: the width between the input and its decays
    inner_width: int = 1024  # channels of s4d, mamba, mamba2
    state: int = 16  # N, numbers that a channel (mamba2: a head's entry) keeps
    convolution: int = 4  # steps that mamba's and mamba2's first convolution sees
    step_rank: int = 32  # of mamba: the width between the input and its step sizes
    state_heads: int = 16  # of mamba2, whose width is inner_width / state_heads
    state_groups: int = 1  # of mamba2: heads of a group share what they write and read by
    inner_norms: bool = False  # of mamba: step, input and output by RMSNorm (Jamba, Lieber 2024)
    bias: bool = False  # of mamba's and mamba2's projections
    step_min: float = 1e-3  # the smallest and the largest step size at the start
    step_max: float = 0.1
    norm_epsilon: float = 1e-5  # of the norms inside of a mixer
    way: str = "auto"  # of the recurrence: steps, associative, chunks; auto: by the mixer
    chunk: int = 64

    def __post_init__(self):
        known("model.mixer.kind = ", self.kind, ("attention", *MIXERS))
        known("model.mixer.feature_map = ", self.feature_map, MAPS)
        known("model.mixer.way = ", self.way, ("auto", *WAYS))
        for name in ("inner_width", "state", "convolution", "step_rank", "state_heads",
                     "state_groups", "gate_rank", "chunk"):  # fmt: skip
            if getattr(self, name) < 1:
                raise LabError(f"model.mixer.{name} = {getattr(self, name)} must be at least 1")
        for heads, width in (("state_heads", "inner_width"), ("state_groups", "state_heads")):
            if self.kind == "mamba2" and getattr(self, width) % getattr(self, heads):
                raise LabError(
                    f"model.mixer.{width} = {getattr(self, width)} is not a multiple of "
                    f"model.mixer.{heads} = {getattr(self, heads)}"
                )
        if not 0 < self.step_min <= self.step_max:
            raise LabError(
                f"model.mixer.step_min = {self.step_min} must be above 0 and at most "
                f"model.mixer.step_max = {self.step_max}"
            )


class Flow(NamedTuple):
    """What a mixer needs to know of its positions; None where there is nothing to say."""

    real: Bool[Array, "b t"] | None = None
    fresh: Bool[Array, "b t"] | None = None
    positions: Int[Array, "t"] | None = None

    def hide(self, x: Array, value: float = 0.0) -> Array:
        """x [B, T, ...] with `value` at the positions that are padding."""
        if self.real is None:
            return x
        return jnp.where(self.real.reshape(self.real.shape + (1,) * (x.ndim - 2)), x, value)


class Mixer(nn.Module):
    """The base of all: a stack's config, and the recurrence with the way that is asked for."""

    config: Any  # a StackConfig

    def scan(self, query, key, value, log_decay, state, flow, auto="chunks", chunk=0):
        mixer = self.config.mixer
        way = auto if mixer.way == "auto" else mixer.way
        if key.shape[1] == 1:
            way = "steps"
        size = chunk or mixer.chunk
        log_decay = flow.hide(jnp.broadcast_to(log_decay, (len(key), *log_decay.shape[1:])))
        key = flow.hide(key)
        return recurrence(query, key, value, log_decay, state, flow.fresh, way=way, chunk=size)

    def project(self, width: int, name: str, role: str = "", bias: bool = False) -> nn.Module:
        """A linear layer of the stack's kind."""
        return dense(self.config, width, bias, role).clone(name=name)


class Linear(Mixer):
    """Linear attention: softmax(q k) replaced by phi(q) phi(k) (Katharopoulos 2020, eq. 5).

    phi is elu + 1 (eq. 7), relu, the exponential of each entry, or the second-order Taylor series
    of the exponential of the product (Arora 2024, section 4), whose keys have 1 + H + H^2 entries.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = Flow(), state: Any = None):
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
        out = out[..., :-1] / jnp.maximum(out[..., -1:], 1e-6)
        out = out.reshape(b, t, -1).astype(x.dtype)
        return self.project(cfg.width, "out", "out")(out), state


def _features(name: str, x: Float[Array, "*b h"]) -> Float[Array, "*b f"]:
    if name == "elu":
        return jax.nn.elu(x) + 1
    if name == "relu":
        return jax.nn.relu(x)
    x = x * x.shape[-1] ** -0.25
    if name == "exponential":
        return jnp.exp(x)
    square = (x[..., None] * x[..., None, :]).reshape(*x.shape[:-1], -1) * 0.5**0.5
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, square], axis=-1)


def _value_dim(cfg: Any) -> int:
    return cfg.mixer.value_dim or cfg.head_dim


class Retention(Mixer):
    """Retention of many scales (Sun 2023, eq. 5-8): heads with fixed decays 1 - 2^-(5 + head).

    Queries and keys turn with their positions; each head's output is normalised by itself, and a
    swish gate of the input multiplies it.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = Flow(), state: Any = None):
        cfg, t = self.config, x.shape[1]
        decay = jnp.log1p(-(2.0 ** -(5.0 + jnp.arange(cfg.heads))))
        return _gated_heads(self, x, flow, state, decay[None, None, :, None], turn=True)


class Gated(Mixer):
    """Gated linear attention (Yang 2023, eq. 3 and section 4.4): decays of each entry of the keys
    from the input, sigmoid(x W_1 W_2 + b)^(1/16)."""

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = Flow(), state: Any = None):
        cfg, (b, t, _) = self.config, x.shape
        inner = self.project(cfg.mixer.gate_rank, "decay_in")(x)
        decay = self.project(cfg.heads * cfg.head_dim, "decay_out", bias=True)(inner)
        decay = jax.nn.log_sigmoid(decay.astype(jnp.float32)) / 16
        decay = decay.reshape(b, t, cfg.heads, cfg.head_dim)
        return _gated_heads(self, x, flow, state, decay, turn=False)


def _gated_heads(self, x, flow, state, log_decay, turn):
    """Heads of a decayed linear attention, each normalised, and a gate on all of them."""
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
    if log_decay.shape[1] == 1:
        log_decay = jnp.broadcast_to(log_decay, (1, t, *log_decay.shape[2:]))
    chunk = 16 if log_decay.shape[-1] > 1 else 0
    out, state = self.scan(query * h**-0.5, key, value, log_decay, state, flow, chunk=chunk)
    out = nn.RMSNorm(epsilon=cfg.mixer.norm_epsilon, name="head_norm")(out).reshape(b, t, n * p)
    gate = jax.nn.silu(self.project(n * p, "gate", "gate")(x))
    return self.project(cfg.width, "out", "out")(out.astype(x.dtype) * gate), state


class S4D(Mixer):
    """A diagonal state space a channel, of complex numbers (Gu 2022, S4D-LegS; zero-order hold).

    A = -1/2 + i pi n at the start (eq. 9's approximation of HiPPO-LegS), B = 1, C and the step
    sizes are learned; the channels are mixed by a gated linear layer afterwards. `state` counts
    real numbers: state / 2 complex ones with their conjugates.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = Flow(), state: Any = None):
        cfg, (b, t, d) = self.config, x.shape
        mixer, n = cfg.mixer, max(cfg.mixer.state // 2, 1)
        normal = nn.initializers.normal(0.5**0.5)
        step = jnp.exp(self.param("log_step", _log_steps(mixer), (d,)))
        real = self.param("log_real", nn.initializers.constant(math.log(0.5)), (d, n))
        imaginary = self.param("imaginary", lambda key, shape: _angles(shape), (d, n))
        out_real, out_imaginary = (self.param(f"out_{p}", normal, (d, n)) for p in ("re", "im"))
        skip = self.param("skip", nn.initializers.normal(1.0), (d,))
        poles = -jnp.exp(real) + 1j * imaginary
        log_decay = (poles * step[:, None])[None, None]
        write = (jnp.exp(log_decay[0, 0]) - 1) / poles  # zero-order hold of B = 1
        key = jnp.broadcast_to(write, (b, t, d, n))
        read = jnp.broadcast_to(2 * (out_real + 1j * out_imaginary), (b, t, d, n))
        value = x.astype(jnp.float32)[..., None].astype(jnp.complex64)
        log_decay = jnp.broadcast_to(log_decay, (1, t, d, n))
        y, state = self.scan(read, key, value, log_decay, state, flow, "associative")
        y = jax.nn.gelu(y[..., 0].real + skip * x).astype(x.dtype)
        a, gate = jnp.split(self.project(2 * cfg.width, "out", "out", bias=True)(y), 2, axis=-1)
        return a * jax.nn.sigmoid(gate), state


def _angles(shape: tuple[int, int]) -> Array:
    return jnp.broadcast_to(math.pi * jnp.arange(shape[1], dtype=jnp.float32), shape)


def _log_steps(mixer: MixerConfig):
    low, high = math.log(mixer.step_min), math.log(mixer.step_max)
    return lambda key, shape: jax.random.uniform(key, shape, minval=low, maxval=high)


def _step_bias(mixer: MixerConfig):
    """softplus^-1 of step sizes that are drawn uniformly in their logarithm, at least 1e-4."""

    def init(key, shape):
        step = jnp.maximum(jnp.exp(_log_steps(mixer)(key, shape)), 1e-4)
        return step + jnp.log(-jnp.expm1(-step))

    return init


class Mamba(Mixer):
    """A selective state space (Gu 2023, algorithm 2, figure 3): step, input and output by token.

    State: the last inputs of the convolution, and [channels, state] numbers.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = Flow(), state: Any = None):
        cfg, (b, t, _) = self.config, x.shape
        mixer = cfg.mixer
        d, n, rank = mixer.inner_width, mixer.state, mixer.step_rank
        before, matrix = (None, None) if state is None else state
        inner, gate = jnp.split(self.project(2 * d, "in", "up", mixer.bias)(x), 2, axis=-1)
        inner, before = _convolved(self, flow.hide(inner), before, flow)
        inner = flow.hide(inner)
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
        step = jax.nn.softplus(step @ kernel + self.param("step_bias", _step_bias(mixer), (d,)))
        log_poles = self.param("log_poles", lambda key, s: jnp.log(1.0 + _numbers(s)), (d, n))
        skip = self.param("skip", nn.initializers.ones, (d,))
        key, query = (jnp.broadcast_to(y[:, :, None], (b, t, d, n)) for y in (write, read))
        value = (step * inner)[..., None]
        log_decay = step[..., None] * -jnp.exp(log_poles)
        y, matrix = self.scan(query, key, value, log_decay, matrix, flow, "steps")
        y = y[..., 0] + skip * inner
        y = y.astype(x.dtype) * jax.nn.silu(gate)
        return self.project(cfg.width, "out", "out", mixer.bias)(y), (before, matrix)


def _numbers(shape: tuple[int, int]) -> Array:
    return jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.float32), shape)


def _convolved(self, x, before, flow):
    """silu of each channel's convolution, and the inputs that the next call begins with."""
    width = self.config.mixer.convolution
    init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=0, out_axis=())
    kernel = self.param("convolution_kernel", init, (width, x.shape[-1]))
    bias = self.param("convolution_bias", nn.initializers.zeros, (x.shape[-1],))
    out, before = convolve(x.astype(jnp.float32), kernel, before, flow.fresh)
    return jax.nn.silu(out + bias), before


class Mamba2(Mixer):
    """State space duality (Dao 2024, section 7.1, figure 6): heads with one decay each."""

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = Flow(), state: Any = None):
        cfg, (b, t, _) = self.config, x.shape
        mixer = cfg.mixer
        d, n, h, g = mixer.inner_width, mixer.state, mixer.state_heads, mixer.state_groups
        before, matrix = (None, None) if state is None else state
        whole = self.project(2 * d + 2 * g * n + h, "in", "up", mixer.bias)(x)
        gate, inner, step = jnp.split(whole, [d, 2 * d + 2 * g * n], axis=-1)
        inner, before = _convolved(self, flow.hide(inner), before, flow)
        inner = flow.hide(inner)
        value, write, read = jnp.split(inner, [d, d + g * n], axis=-1)
        key, query = (
            jnp.repeat(y.reshape(b, t, g, n), h // g, axis=2) for y in (write, read)
        )
        bias = self.param("step_bias", _step_bias(mixer), (h,))
        step = jax.nn.softplus(step.astype(jnp.float32) + bias)
        log_poles = self.param("log_poles", lambda key, s: jnp.log(1.0 + jnp.arange(s[0])), (h,))
        skip = self.param("skip", nn.initializers.ones, (h,))
        value = value.reshape(b, t, h, d // h)
        log_decay = (step * -jnp.exp(log_poles))[..., None]
        y, matrix = self.scan(query, key, value * step[..., None], log_decay, matrix, flow)
        y = (y + skip[:, None] * value).reshape(b, t, d).astype(x.dtype) * jax.nn.silu(gate)
        y = nn.RMSNorm(epsilon=mixer.norm_epsilon, name="norm")(y)
        return self.project(cfg.width, "out", "out", mixer.bias)(y), (before, matrix)


def shifted(
    x: Float[Array, "b t d"], before: Float[Array, "b d"] | None, flow: Flow
) -> tuple[Float[Array, "b t d"], Float[Array, "b d"]]:
    """Each position's predecessor (zeros for a document's first), and the last real input."""
    first = jnp.zeros_like(x[:, 0]) if before is None else before.astype(x.dtype)
    x = flow.hide(x)
    past = jnp.concatenate([first[:, None], x[:, :-1]], axis=1)
    if flow.fresh is not None:
        past = jnp.where(flow.fresh[..., None], 0, past)
    return past, x[:, -1]


class RWKV(Mixer):
    """The time mixing of RWKV-4 (Peng 2023, eq. 11-18): decays of each channel, a bonus for the
    present token, and sums that are divided by their largest exponent."""

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = Flow(), state: Any = None):
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
        decay = -jnp.exp(self.param("log_decay", lambda key, s: jnp.linspace(-5.0, 3.0, s[0]), (d,)))
        bonus = self.param("bonus", nn.initializers.constant(math.log(0.3)), (d,))
        log_key = flow.hide(key.astype(jnp.float32), LOWEST)
        value = value.astype(jnp.float32)
        top = jnp.full((b, d), LOWEST) if top is None else top
        tops = max_plus(log_key, decay, top, flow.fresh)
        earlier = jnp.concatenate([top[:, None], tops[:, :-1]], axis=1)
        if flow.fresh is not None:
            earlier = jnp.where(flow.fresh[..., None], LOWEST, earlier)
        # The sums after each step, then those before it.
        ones = jnp.stack([value, jnp.ones_like(value)], axis=-1)
        write = jnp.exp(jnp.where(log_key > LOWEST, log_key - tops, -jnp.inf))[..., None]
        kept = jnp.minimum(earlier + decay - tops, 0.0)[..., None]
        sums = jnp.zeros((b, d, 1, 2)) if sums is None else sums
        query = jnp.ones((b, t, d, 1))
        after, last = self.scan(query, write, ones, kept, sums, flow, "associative")
        past_sums = jnp.concatenate([sums[:, None, :, 0], after[:, :-1]], axis=1)
        if flow.fresh is not None:
            past_sums = jnp.where(flow.fresh[..., None, None], 0.0, past_sums)
        largest = jnp.maximum(earlier, bonus + log_key)
        old, new = jnp.exp(earlier - largest), jnp.exp(bonus + log_key - largest)
        total = old[..., None] * past_sums + new[..., None] * ones
        out = (jax.nn.sigmoid(gate) * (total[..., 0] / total[..., 1])).astype(x.dtype)
        return self.project(cfg.width, "out", "out")(out), (before, tops[:, -1], last)


MIXERS = {
    "linear": Linear,
    "retention": Retention,
    "gated": Gated,
    "s4d": S4D,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "rwkv": RWKV,
}
