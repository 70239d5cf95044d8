"""Dense layers, norms and the feed-forward, as every block uses them."""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Key

from transformer_lab.layers.config import StackConfig
from transformer_lab.ops.activations import ACTIVATIONS, GATED
from transformer_lab.ops.dropout import dropout
from transformer_lab.ops.layout import constrain
from transformer_lab.ops.norms import layer_norm
from transformer_lab.ops.products import product

PRODUCT = "product"  # the name by which `remat` recognises the outputs of kernels


class Dense(nn.Module):
    """x kernel + bias: float32 parameters [in, features] and [features], read in `dtype`.

    `split` names the kernel's dimension, "in" or "out", that lies over the tensor axis of a mesh.
    """

    features: int
    use_bias: bool = True
    dtype: jnp.dtype | None = None
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
    split: str = ""
    numbers: str = "float"  # see `ops.products.product`

    @nn.compact
    def __call__(self, x: Float[Array, "*batch i"]) -> Float[Array, "*batch o"]:
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        names = tuple("hidden" if side == self.split else None for side in ("in", "out"))
        out = product(x.astype(self.dtype or x.dtype), kernel, names, None, self.numbers)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            out = out + bias.astype(out.dtype)
        return checkpoint_name(out, PRODUCT)


SPLIT = {"query": "out", "key": "out", "value": "out", "gate": "out", "up": "out"}
SPLIT |= {"out": "in", "down": "in"}  # the kernels' dimension that the tensor axis splits


def dense(
    config: StackConfig, features: int, bias: bool, role: str = "", name: str | None = None
) -> Dense:
    """A dense layer in the config's compute type; some roles have smaller initial values."""
    gain = config.init_gain(role)
    init = {
        "xavier_uniform": nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform"),
        "normal": nn.initializers.normal(config.init_std * gain),
    }[config.kernel_init]
    split, numbers = SPLIT.get(role, ""), config.products
    return Dense(features, bias, config.compute_dtype, init, split, numbers, name=name)


def joined(x: Float[Array, "b t d"], layers: Sequence[Dense]) -> list[Float[Array, "b t _"]]:
    """The outputs of several dense layers for one input, computed by one product.

    It is for single positions, where each product waits for the one before: a decoding loop joins
    the kernels once, before it starts.
    """
    params = [layer.variables["params"] for layer in layers]
    kernel = jnp.concatenate([p["kernel"] for p in params], axis=1).astype(x.dtype)
    out = x @ kernel
    if any(layer.use_bias for layer in layers):
        biases = [p.get("bias", jnp.zeros(p["kernel"].shape[1])) for p in params]
        out = out + jnp.concatenate(biases).astype(x.dtype)
    ends = np.cumsum([p["kernel"].shape[1] for p in params])[:-1]
    return jnp.split(out, ends.tolist(), axis=-1)


class Identity(nn.Module):
    """Takes the place of a norm and does nothing, for ablations."""

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return x


class LayerNorm(nn.Module):
    """Layer normalization with float32 scale and bias, see `ops.norms.layer_norm`."""

    epsilon: float
    use_bias: bool
    use_scale: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        shape = x.shape[-1:]
        scale, bias = jnp.ones(shape), jnp.zeros(shape)
        if self.use_scale:
            scale = self.param("scale", nn.initializers.ones, shape)
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


def norm(config: StackConfig, weights: bool = True) -> nn.Module:
    """The norm that the config names: LayerNorm (Ba 2016), RMSNorm (Zhang 2019), DyT or none.

    Without `weights`, which DyT keeps, something else scales and shifts the norm's output.
    """
    if config.norm == "none":
        return Identity()
    if config.norm == "dyt":
        return DyT(config.dyt_alpha, config.norm_bias)
    if config.norm == "rms_norm":
        how = {"epsilon": config.norm_epsilon, "dtype": config.compute_dtype}
        return nn.RMSNorm(**how, use_scale=weights)
    return LayerNorm(config.norm_epsilon, config.norm_bias and weights, weights)


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
        # With `up` split by columns and `down` by rows, the hidden units stay on their devices.
        hidden = constrain(hidden, "rows", "length", "hidden")
        return self.down(dropout(hidden, cfg.feed_forward_dropout, dropout_key))
