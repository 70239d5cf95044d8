"""A forecaster of series: a stack over patches of the past (PatchTST, Nie 2023, section 3)."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_lab.errors import LabError, at_least
from transformer_lab.layers.basic import dense
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.embedding import enter
from transformer_lab.layers.positions import PositionVectors
from transformer_lab.layers.stack import Stack
from transformer_lab.models.base import Model
from transformer_lab.ops.activations import ACTIVATIONS
from transformer_lab.ops.visibility import Visible


@dataclass(frozen=True)
class PatchForecasterConfig(StackConfig):
    """Settings of the stack, of the patches and of the outputs."""

    layers: int = 3
    width: int = 64
    heads: int = 4
    head_dim: int = 16
    feed_forward_width: int = 128
    activation: str = "gelu"
    norm_place: str = "pre"
    positions: str = "learned"
    context: int = 72  # steps of the past that are read
    horizon: int = 18  # steps that are predicted, all at once
    patch: int = 6  # steps of a patch
    causal: bool = False  # a decoder: a patch sees those before it; else an encoder
    covariates: int = 8  # numbers that are known of each step, past and future
    outputs: int = 9  # numbers for each step to come; the task sets it
    step_width: int = 32  # width of the layer before the outputs, for each step
    linear: bool = True  # a linear map of the past is added to the outputs (Zeng 2023)

    def __post_init__(self):
        super().__post_init__()
        at_least(self, "model", 1, "context", "horizon", "patch", "outputs", "step_width")
        if self.context % self.patch:
            raise LabError(
                f"model.context = {self.context} is no multiple of model.patch = {self.patch}"
            )
        if not self.causal:
            self.reads_both_ways("an encoder of patches")

    @property
    def tokens(self) -> int:
        """The number of patches."""
        return self.context // self.patch


class PatchForecaster(Model):
    """Maps the scaled past of series, and covariates, to the outputs of each step to come."""

    config: PatchForecasterConfig

    def setup(self):
        cfg = self.config
        self.entrance = dense(cfg, cfg.width, True)
        self.positions = PositionVectors(cfg)
        self.encoder = Stack(cfg, cfg.layers, causal=cfg.causal)
        self.head = StepsHead(cfg)

    def __call__(
        self,
        values: Float[Array, "b t"],
        seen: Bool[Array, "b t"],
        covariates: Float[Array, "b s c"],
        dropout_key: Key[Array, ""] | None = None,
    ) -> Float[Array, "b h o"]:
        """Outputs of the h steps after the t of the past; s = t + h. Values that are not `seen`
        are 0; a patch that holds no seen value is not attended to."""
        cfg = self.config
        if self.is_initializing():  # shapes are the config's, whatever the example
            values, seen, covariates = smallest(cfg)
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        past = joined_past(values, seen, covariates).astype(cfg.compute_dtype)
        x = self.entrance(past.reshape(len(past), cfg.tokens, -1))
        x, added = enter(cfg, x, self.positions(jnp.arange(cfg.tokens)[None]), None, keys[0])
        real = seen.reshape(len(seen), cfg.tokens, -1).any(axis=-1)
        x = self.encoder(x, Visible(keys=real), dropout_key=keys[1], added=added)
        x = jnp.where(real[..., None], x, 0)
        return self.head(x.reshape(len(x), -1), values, seen, covariates)


class StepsHead(nn.Module):
    """Outputs of each step to come, from one vector of the past and the step's own covariates.

    The vector gives each step `step_width` numbers, its covariates are added to them, and one
    layer follows; `linear` adds a linear map of the past.
    """

    config: Any  # a model's settings

    @nn.compact
    def __call__(
        self,
        state: Float[Array, "b d"],
        values: Float[Array, "b t"],
        seen: Bool[Array, "b t"],
        covariates: Float[Array, "b s c"],
    ) -> Float[Array, "b h o"]:
        cfg = self.config
        b, h, dtype = len(state), cfg.horizon, state.dtype
        future = covariates[:, values.shape[1] :].astype(dtype)
        steps = nn.Dense(h * cfg.step_width, dtype=dtype, name="steps")(state)
        steps = steps.reshape(b, h, cfg.step_width)
        steps += nn.Dense(cfg.step_width, dtype=dtype, name="calendar")(future)
        out = nn.Dense(cfg.outputs, dtype=dtype, name="out")(ACTIVATIONS["gelu"](steps))
        out = out.astype(jnp.float32)
        if cfg.linear:
            past = jnp.concatenate([values, seen.astype(values.dtype)], axis=1)
            lines = nn.Dense(h, kernel_init=nn.initializers.zeros, name="linear")(past)
            out = out + lines[..., None]
        return out


def joined_past(
    values: Float[Array, "b t"], seen: Bool[Array, "b t"], covariates: Float[Array, "b s c"]
) -> Float[Array, "b t _"]:
    """What is known of each step of the past: its value, whether there is one, its covariates."""
    own = jnp.stack([values, seen.astype(values.dtype)], axis=-1)
    return jnp.concatenate([own, covariates[:, : values.shape[1]]], axis=-1)


def smallest(config: Any) -> tuple[Array, Array, Array]:
    """A series of ones in the config's sizes: its values, its mask and its covariates."""
    past = jnp.ones((1, config.context))
    steps = config.context + config.horizon
    return past, past > 0, jnp.zeros((1, steps, config.covariates))


def example_inputs() -> tuple[Array, ...]:
    """The arguments of `init`, which takes the sizes from the config."""
    return jnp.ones((1, 1)), jnp.ones((1, 1), bool), jnp.zeros((1, 2, 1))


CONFIG = PatchForecasterConfig
build = PatchForecaster
STACKS = {"encoder": "layers"}
