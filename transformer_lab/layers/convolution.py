"""The convolution module of the Conformer (Gulati 2020, figure 2)."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_lab.layers.basic import LayerNorm, dense
from transformer_lab.layers.told import BatchNorm
from transformer_lab.ops.layout import constrain
from transformer_lab.ops.scan import convolve

MOMENTUM, EPSILON = 0.9, 1e-5  # of the batch norm


class Convolution(nn.Module):
    """swish(norm(depthwise(gated linear unit of x))) W_down, from neighbours on both sides.

    The gated linear unit is (x W_up + b) sigmoid(x W_gate + c) (Dauphin 2017). The depthwise
    convolution has `convolution_width` taps for each channel, `taps` [taps, D], and sees zeros
    where a position is padding or beyond the ends; padding enters no statistics of the batch norm.
    """

    config: Any  # a StackConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d"], real: Bool[Array, "b t"] | None, training: bool
    ) -> Float[Array, "b t d"]:
        cfg = self.config
        project = lambda role: dense(cfg, cfg.width, True, role, role)  # noqa: E731
        h = project("up")(x) * nn.sigmoid(project("gate")(x))
        h = constrain(h, "rows", "length", "hidden")
        if real is not None:
            h = jnp.where(real[..., None], h, 0)
        taps = self.param(
            "taps", nn.initializers.lecun_normal(), (cfg.convolution_width, cfg.width)
        )
        later = cfg.convolution_width // 2  # taps on positions after the present one
        whole = jnp.pad(h, ((0, 0), (0, later), (0, 0)))
        h = convolve(whole, taps.astype(h.dtype))[0][:, later:]
        if cfg.convolution_norm == "batch_norm":
            norm = BatchNorm(MOMENTUM, EPSILON, cfg.compute_dtype, name="norm")
            h = norm(h, training, real)
        else:
            h = LayerNorm(cfg.norm_epsilon, True, name="norm")(h)
        return project("down")(nn.silu(h))
