"""WaveNet for series (van den Oord 2016): causal convolutions, ever more dilated, with gates."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_lab.errors import at_least, chosen, fractions
from transformer_lab.models.base import Model
from transformer_lab.models.patch_forecaster import StepsHead, joined_past, smallest
from transformer_lab.models.patch_forecaster import example_inputs as example_inputs
from transformer_lab.ops.dropout import dropout


@dataclass(frozen=True)
class WaveNetConfig:
    """Settings of the layers and of the outputs."""

    layers: int = 6  # gated convolutions, one after the other
    cycle: int = 6  # layers after which the dilations 1, 2, 4, ... begin again
    taps: int = 2  # steps that a convolution sees
    width: int = 32  # channels of the residual stream
    skip_width: int = 64  # channels of what all layers add up for the head
    context: int = 72  # steps of the past that are read
    horizon: int = 18  # steps that are predicted, all at once
    covariates: int = 8  # numbers that are known of each step, past and future
    outputs: int = 9  # numbers for each step to come; the task sets it
    step_width: int = 32  # width of the layer before the outputs, for each step
    linear: bool = True  # a linear map of the past is added to the outputs
    dropout: float = 0.0  # on what each layer adds
    dtype: str = "float32"  # the compute type

    def __post_init__(self):
        sizes = "layers", "cycle", "width", "skip_width", "context", "horizon", "step_width"
        at_least(self, "model", 1, *sizes)
        at_least(self, "model", 2, "taps")
        fractions(self, "model", "dropout")
        chosen(self, "model", {"dtype": ("float32", "bfloat16")})

    @property
    def receptive_field(self) -> int:
        """The steps that the last state depends on: 1 + (taps - 1) times the sum of dilations."""
        return 1 + (self.taps - 1) * sum(2 ** (i % self.cycle) for i in range(self.layers))


class WaveNet(Model):
    """Maps the scaled past of series, and covariates, to the outputs of each step to come.

    The head reads the last step's sum of skips, where the paper predicts one step after the other.
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
        """Outputs of the h steps after the t of the past; s = t + h."""
        cfg = self.config
        if self.is_initializing():  # shapes are the config's, whatever the example
            values, seen, covariates = smallest(cfg)
        past = joined_past(values, seen, covariates).astype(cfg.dtype)
        x, skips = nn.Dense(cfg.width, dtype=cfg.dtype, name="entrance")(past), 0.0
        for i in range(cfg.layers):
            key = None if dropout_key is None else jax.random.fold_in(dropout_key, i)
            added, skip = Layer(cfg, 2 ** (i % cfg.cycle), name=f"layer_{i}")(x)
            x, skips = x + dropout(added, cfg.dropout, key), skips + skip
        return StepsHead(cfg, name="head")(nn.relu(skips[:, -1]), values, seen, covariates)


class Layer(nn.Module):
    """tanh(W_f * x) sigmoid(W_g * x) (equation 2), then one product for the residual stream and
    one for the skips; * is a causal convolution whose taps are `dilation` steps apart."""

    config: WaveNetConfig
    dilation: int

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d"]
    ) -> tuple[Float[Array, "b t d"], Float[Array, "b t k"]]:
        cfg = self.config
        both = nn.Conv(
            2 * cfg.width, (cfg.taps,), kernel_dilation=self.dilation, padding="CAUSAL",
            dtype=cfg.dtype, name="taps",
        )(x)  # fmt: skip
        content, gate = jnp.split(both, 2, axis=-1)
        h = jnp.tanh(content) * nn.sigmoid(gate)
        out = nn.Dense(cfg.width, dtype=cfg.dtype, name="out")(h)
        return out, nn.Dense(cfg.skip_width, dtype=cfg.dtype, name="skip")(h)


CONFIG = WaveNetConfig
build = WaveNet
