"""WaveNet for series (van den Oord 2016): causal convolutions, ever more dilated, with gates."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_lab.errors import at_least, fractions
from transformer_lab.models.model import Model
from transformer_lab.models.patch_forecaster import StepsConfig, StepsHead, joined_past, smallest
from transformer_lab.models.patch_forecaster import example_inputs as example_inputs
from transformer_lab.ops.dropout import dropout


@dataclass(frozen=True)
class WaveNetConfig(StepsConfig):
    """Settings of the dilated convolutions."""

    layers: int = 6  # gated convolutions, one after the other
    cycle: int = 6  # layers after which the dilations 1, 2, 4, ... begin again
    taps: int = 2  # steps that a convolution sees
    width: int = 32  # channels of the residual stream
    skip_width: int = 64  # channels of what all layers add up for the head

    def __post_init__(self):
        sizes = "layers", "cycle", "width", "skip_width", "context", "horizon", "step_width"
        at_least(self, "model", 1, *sizes)
        at_least(self, "model", 2, "taps")
        fractions(self, "model", "dropout")


class WaveNet(Model):
    """Maps the scaled past of series, and covariates, to the outputs of each step to come.

    Each layer is tanh(W_f * x) sigmoid(W_g * x) (equation 2), where * is a causal convolution whose
    taps are 1, 2, 4, ... steps apart; one product of it goes on, another is summed up for the head,
    which reads the last step and gives all steps at once, where the paper predicts one by one.
    """

    config: WaveNetConfig

    @nn.compact
    def __call__(
        self,
        values: Float[Array, "b t"],
        seen: Bool[Array, "b t"],
        covariates: Float[Array, "b s c"],
        dropout_key: Key[Array, ""] | None = None,
    ) -> Float[Array, "b h o"]:
        """As `models.base.Forecaster`."""
        cfg, skips = self.config, 0.0
        if self.is_initializing():
            values, seen, covariates = smallest(cfg)
        layer = lambda width, name: nn.Dense(width, dtype=cfg.dtype, name=name)  # noqa: E731
        x = layer(cfg.width, "entrance")(joined_past(values, seen, covariates).astype(cfg.dtype))
        for i in range(cfg.layers):
            key = None if dropout_key is None else jax.random.fold_in(dropout_key, i)
            both = nn.Conv(
                2 * cfg.width, (cfg.taps,), padding="CAUSAL", dtype=cfg.dtype, name=f"taps_{i}",
                kernel_dilation=2 ** (i % cfg.cycle),
            )(x)  # fmt: skip
            content, gate = jnp.split(both, 2, axis=-1)
            h = jnp.tanh(content) * nn.sigmoid(gate)
            x = x + dropout(layer(cfg.width, f"out_{i}")(h), cfg.dropout, key)
            skips += layer(cfg.skip_width, f"skip_{i}")(h[:, -1])
        return StepsHead(cfg, name="head")(nn.relu(skips), values, seen, covariates)


CONFIG = WaveNetConfig
build = WaveNet
RULES = ((r"kernel$", ()),)
