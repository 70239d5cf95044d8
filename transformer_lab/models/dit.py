"""The diffusion transformer (DiT, Peebles 2023): noisy images to the noise or velocity in them."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.errors import LabError, at_least
from transformer_lab.layers.basic import Dense, dense
from transformer_lab.layers.config import ADDED, CHOICES, StackConfig
from transformer_lab.layers.embedding import Embedding
from transformer_lab.layers.positions import PositionVectors
from transformer_lab.layers.stack import Stack
from transformer_lab.models.model import Model
from transformer_lab.ops.patches import from_patches, grid_sinusoids, patch_grid, to_patches
from transformer_lab.ops.pooling import pool
from transformer_lab.ops.positions import sinusoids
from transformer_lab.ops.visibility import Visible

WAVES = 256  # sinusoids of the time
RANGE = 1000.0  # times from 0 to 1 are stretched to it before


@dataclass(frozen=True)
class DiTConfig(StackConfig):
    """Settings of a stack over patches, conditioned on a time and a text; defaults of DiT-B/2."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    feed_forward_width: int = 3072
    activation: str = "gelu_tanh"
    norm_place: str = "pre"
    dropout: float = 0.0
    positions: str = "learned"  # of the text's words; patches have sinusoids of row and column
    image_size: tuple[int, int] = (32, 32)  # height, width
    patch_size: tuple[int, int] = (2, 2)  # pixels of a patch, rows and columns
    channels: int = 3  # colours of an image: 3, or 1 for grey
    vocab_size: int | None = None  # None: the tokenizer's
    text_layers: int = 0  # blocks over the text; 0: its words' vectors count, not their order
    max_length: int = 16  # the most tokens of a text

    def __post_init__(self):
        super().__post_init__()
        self.reads_both_ways("a stack over patches")
        patch_grid(self.image_size, self.patch_size)
        at_least(self, "model", 0, "text_layers")
        if self.norm_place != "pre" or self.block == "conformer" or self.width % 4:
            raise LabError(
                'a diffusion transformer needs model.norm_place = "pre", a model.block other than '
                "conformer, and a model.width that is a multiple of 4"
            )

    def choices(self) -> dict[str, tuple[str, ...]]:
        return CHOICES | {"positions": ADDED}


class DiT(Model):
    """Predicts what is noise in images, from the images, their times and their texts.

    The sum of the time's vector and the mean of the text's states scales and shifts each block.
    """

    config: DiTConfig

    def setup(self):
        cfg = self.config
        zero = nn.initializers.zeros
        self.patch_embedding = dense(cfg, cfg.width, True)
        self.time_in, self.time_out = (dense(cfg, cfg.width, True) for _ in range(2))
        self.embedding = Embedding(cfg.vocab_size, cfg.width, cfg.init_std, cfg.compute_dtype)
        if cfg.text_layers:
            self.positions = PositionVectors(cfg)
            self.text = Stack(cfg, cfg.text_layers)
        self.encoder = Stack(cfg, cfg.layers, conditioned=True)
        self.final_modulation = Dense(2 * cfg.width, True, cfg.compute_dtype, zero)
        pixels = cfg.patch_size[0] * cfg.patch_size[1] * cfg.channels
        self.final = Dense(pixels, True, cfg.compute_dtype, zero)

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        times: Float[Array, "b"],
        tokens: Int[Array, "b t"],
        mask: Bool[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
    ) -> Float[Array, "b height width c"]:
        """The prediction for each pixel, in float32; 0 everywhere before training. A text without
        a real token (`mask`) is no condition."""
        cfg = self.config
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        if self.is_initializing():  # shapes are the config's, whatever the example
            images = jnp.zeros((len(images), *cfg.image_size, cfg.channels))
        waves = sinusoids(RANGE * times, WAVES, halves=True).astype(cfg.compute_dtype)
        condition = self.time_out(nn.silu(self.time_in(waves)))
        condition = condition + self._of_text(tokens, mask, keys[0]).astype(condition.dtype)
        x = self.patch_embedding(to_patches(images.astype(cfg.compute_dtype), cfg.patch_size))
        grid = patch_grid(images.shape[1:3], cfg.patch_size)
        x = x + grid_sinusoids(grid, cfg.width).astype(x.dtype)
        x = self.encoder(x, dropout_key=keys[1], condition=condition)
        shift, scale = jnp.split(self.final_modulation(nn.silu(condition))[:, None], 2, axis=-1)
        found = self.final(x * (1 + scale) + shift).astype(jnp.float32)
        return from_patches(found, images.shape[1:3], cfg.patch_size)

    def _of_text(self, tokens, mask, key):
        x = self.embedding(tokens)
        if self.config.text_layers:
            x = x + self.positions(jnp.arange(tokens.shape[1])[None])
            x = self.text(x, Visible(keys=mask), dropout_key=key)
        return pool(x, mask)


def example_inputs() -> tuple[Array, ...]:
    """The arguments of `init`, which takes the image's size from the config."""
    text = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2), bool)
    return jnp.zeros((1, 1, 1, 1)), jnp.zeros(1), *text


CONFIG = DiTConfig
build = DiT
STACKS = {"encoder": "layers"}
RULES = ((r"(patch_embedding|time_in|time_out|final\w*|modulation)/kernel$", ()),)
