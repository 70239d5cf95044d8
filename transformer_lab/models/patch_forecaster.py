"""A forecaster of series: a stack over patches of the past (PatchTST, Nie 2023, section 3)."""

from dataclasses import dataclass

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
from transformer_lab.models.model import Model
from transformer_lab.ops.visibility import Visible


@dataclass(frozen=True)
class StepsConfig:
    """Settings that forecasters share: what they read, and the head of all steps at once."""

    context: int = 72  # steps of the past that are read
    horizon: int = 18  # steps that are predicted
    covariates: int = 8  # numbers that are known of each step, past and future
    outputs: int = 9  # numbers for each step to come; the task sets it
    step_width: int = 16  # width of the layer before the outputs, for each step
    linear: bool = True  # a linear map of the past is added to the outputs (Zeng 2023)
    dropout: float = 0.1  # on what each layer adds
    dtype: str = "float32"  # the compute type


@dataclass(frozen=True)
class PatchForecasterConfig(StackConfig, StepsConfig):
    """Settings of the stack over patches."""

    layers: int = 3
    width: int = 32
    heads: int = 2
    head_dim: int = 16
    feed_forward_width: int = 64
    activation: str = "gelu"
    norm_place: str = "pre"
    positions: str = "learned"
    patch: int = 12  # steps of a patch
    causal: bool = False  # a decoder, where a patch sees those before it; else an encoder

    def __post_init__(self):
        super().__post_init__()
        at_least(self, "model", 1, "context", "horizon", "patch", "step_width")
        if self.context % self.patch:
            what = f"model.context = {self.context} is not a multiple of model.patch"
            raise LabError(f"{what} = {self.patch}")
        if not self.causal:
            self.reads_both_ways("an encoder of patches")


class PatchForecaster(Model):
    """Maps the scaled past of series, and covariates, to the outputs of each step to come."""

    config: PatchForecasterConfig

    @nn.compact
    def __call__(
        self,
        values: Float[Array, "b t"],
        seen: Bool[Array, "b t"],
        covariates: Float[Array, "b s c"],
        dropout_key: Key[Array, ""] | None = None,
    ) -> Float[Array, "b h o"]:
        """As `models.base.Forecaster`. A patch that holds no seen value is not attended to."""
        cfg, keys = self.config, (None, None)
        if self.is_initializing():
            values, seen, covariates = smallest(cfg)
        if dropout_key is not None:
            keys = jax.random.split(dropout_key)
        past = joined_past(values, seen, covariates).astype(cfg.compute_dtype)
        patches = cfg.context // cfg.patch
        x = dense(cfg, cfg.width, True, name="entrance")(past.reshape(len(past), patches, -1))
        vectors = PositionVectors(cfg, name="positions")(jnp.arange(patches)[None])
        x, added = enter(cfg, x, vectors, None, keys[0])
        real = seen.reshape(len(seen), patches, -1).any(axis=-1)
        stack = Stack(cfg, cfg.layers, causal=cfg.causal, name="encoder")
        x = stack(x, Visible(keys=real), dropout_key=keys[1], added=added)
        state = jnp.where(real[..., None], x, 0).reshape(len(x), -1)
        return StepsHead(cfg, name="head")(state, values, seen, covariates)


class StepsHead(nn.Module):
    """Outputs of each step to come: the state gives each step `step_width` numbers, the step's own
    covariates are added to them, and one layer follows."""

    config: StepsConfig

    @nn.compact
    def __call__(
        self,
        state: Float[Array, "b d"],
        values: Float[Array, "b t"],
        seen: Bool[Array, "b t"],
        covariates: Float[Array, "b s c"],
    ) -> Float[Array, "b h o"]:
        cfg = self.config
        layer = lambda width, name: nn.Dense(width, dtype=state.dtype, name=name)  # noqa: E731
        steps = layer(cfg.horizon * cfg.step_width, "steps")(state)
        steps = steps.reshape(len(state), cfg.horizon, cfg.step_width)
        steps += layer(cfg.step_width, "calendar")(covariates[:, cfg.context :])
        out = layer(cfg.outputs, "out")(nn.gelu(steps)).astype(jnp.float32)
        if cfg.linear:
            past = jnp.concatenate([values, seen.astype(values.dtype)], axis=1)
            lines = nn.Dense(cfg.horizon, kernel_init=nn.initializers.zeros, name="linear")(past)
            out = out + lines[..., None]
        return out


def joined_past(
    values: Float[Array, "b t"], seen: Bool[Array, "b t"], covariates: Float[Array, "b s c"]
) -> Float[Array, "b t _"]:
    """What is known of each step of the past: its value, whether it is seen, its covariates."""
    own = jnp.stack([values, seen.astype(values.dtype)], axis=-1)
    return jnp.concatenate([own, covariates[:, : values.shape[1]]], axis=-1)


def smallest(config: StepsConfig) -> tuple[Array, Array, Array]:
    """One series of the config's sizes, as a model initialises itself whatever the example."""
    past = jnp.ones((1, config.context))
    return past, past > 0, jnp.zeros((1, config.context + config.horizon, config.covariates))


def example_inputs() -> tuple[Array, ...]:
    """The arguments of `init`, which takes the sizes from the config."""
    return smallest(StepsConfig(context=1, horizon=1))


CONFIG = PatchForecasterConfig
build = PatchForecaster
STACKS = {"encoder": "layers"}
RULES = ((r"(entrance|head/\w+)/kernel$", ()),)
