"""Dense, norm and feed-forward as every block uses them."""

from collections.abc import Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from transformer_lab.layers.config import StackConfig
from transformer_lab.ops.activations import ACTIVATIONS, GATED
from transformer_lab.ops.dropout import dropout
from transformer_lab.ops.norms import layer_norm


def product(x: Float[Array, "*batch i"], kernel: Float[Array, "i o"], *_, **options) -> Array:
    """`lax.dot_general` of the last and the first dimension, of all rows of x as one matrix.

    The gradient of a kernel is then one plain product as well. Of an x with more dimensions, XLA's
    CPU backend (0.10) first writes a transposed copy of what comes back: a quarter of the step of
    configs/t5_mixture.py.
    """
    rows = x.reshape(-1, x.shape[-1])
    out = jax.lax.dot_general(rows, kernel, (((1,), (0,)), ((), ())), **options)
    return out.reshape(*x.shape[:-1], kernel.shape[1])


Dense = partial(nn.Dense, dot_general=product)


def dense(config: StackConfig, features: int, bias: bool, role: str = "") -> nn.Dense:
    """A float32 kernel [in, features] applied in the compute type; some roles start smaller."""
    gain = config.init_gain(role)
    init = {
        "xavier_uniform": nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform"),
        "normal": nn.initializers.normal(config.init_std * gain),
    }[config.kernel_init]
    return Dense(features, use_bias=bias, dtype=config.compute_dtype, kernel_init=init)


def joined(x: Float[Array, "b t d"], layers: Sequence[nn.Dense]) -> list[Float[Array, "b t _"]]:
    """The layers' outputs for one input, by one product.

    For single positions, where each product waits for the one before: a decoding loop joins the
    kernels once, before it starts.
    """
    params = [layer.variables["params"] for layer in layers]
    kernel = jnp.concatenate([p["kernel"] for p in params], axis=1).astype(x.dtype)
    out = x @ kernel
    if layers[0].use_bias:
        out = out + jnp.concatenate([p["bias"] for p in params]).astype(x.dtype)
    ends = np.cumsum([p["kernel"].shape[1] for p in params])[:-1]
    return jnp.split(out, ends.tolist(), axis=-1)


class Identity(nn.Module):
    """Stands where a norm would, for ablations."""

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return x


class LayerNorm(nn.Module):
    """`ops.norms.layer_norm` with its float32 scale and bias."""

    epsilon: float
    use_bias: bool

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        shape = x.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, shape)
        bias = jnp.zeros(shape)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, shape)
        return layer_norm(x, scale, bias, self.epsilon)


class DyT(nn.Module):
    """tanh(alpha x) * scale + bias, without statistics (Zhu 2025, section 4)."""

    alpha: float
    use_bias: bool

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        alpha = self.param("alpha", nn.initializers.constant(self.alpha), ())
        out = jnp.tanh(alpha * x.astype(jnp.float32))
        out = out * self.param("scale", nn.initializers.ones, x.shape[-1:])
        if self.use_bias:
            out = out + self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return out.astype(x.dtype)


def norm(config: StackConfig) -> nn.Module:
    """LayerNorm (Ba 2016), RMSNorm (Zhang 2019), DyT or none; statistics in float32."""
    if config.norm == "none":
        return Identity()
    if config.norm == "dyt":
        return DyT(config.dyt_alpha, config.norm_bias)
    if config.norm == "rms_norm":
        return nn.RMSNorm(epsilon=config.norm_epsilon, dtype=config.compute_dtype)
    return LayerNorm(config.norm_epsilon, config.norm_bias)


class FeedForward(nn.Module):
    """act(x W_up + b) W_down + b (Vaswani 2017, eq. 2), or gated (Shazeer 2020, eq. 6)."""

    config: StackConfig

    def setup(self):
        cfg = self.config
        if cfg.activation in GATED:
            self.gate = dense(cfg, cfg.feed_forward_width, cfg.feed_forward_bias, "gate")
        self.up = dense(cfg, cfg.feed_forward_width, cfg.feed_forward_bias, "up")
        self.down = dense(cfg, cfg.width, cfg.feed_forward_bias, "down")

    def __call__(
        self, x: Float[Array, "b t d"], dropout_key: Key[Array, ""] | None = None
    ) -> Float[Array, "b t d"]:
        cfg = self.config
        if cfg.activation in GATED:
            hidden = ACTIVATIONS[GATED[cfg.activation]](self.gate(x)) * self.up(x)
        else:
            hidden = ACTIVATIONS[cfg.activation](self.up(x))
        return self.down(dropout(hidden, cfg.feed_forward_dropout, dropout_key))


class Embedding(nn.Module):
    """A float32 table [vocabulary, width], read in the compute type; also an output head."""

    vocab_size: int
    width: int
    std: float
    dtype: jnp.dtype

    def setup(self):
        init = nn.initializers.normal(self.std)
        self.embedding = self.param("embedding", init, (self.vocab_size, self.width))

    def __call__(self, ids: Array) -> Float[Array, "*ids d"]:
        return jnp.take(self.embedding, ids, axis=0).astype(self.dtype)

    def logits(self, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        """x E^T, accumulated in float32."""
        table = self.embedding.astype(self.dtype)
        return product(x, table.T, preferred_element_type=jnp.float32)
