"""Images to images by transformers over patches, through a codebook: VQ-VAE (van den Oord 2017)."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.errors import at_least, fractions
from transformer_lab.layers.basic import Dense, dense
from transformer_lab.layers.config import CHOICES, StackConfig
from transformer_lab.layers.stack import Stack
from transformer_lab.layers.told import renew, running, tell
from transformer_lab.models.model import Model
from transformer_lab.ops.patches import from_patches, grid_sinusoids, patch_grid, to_patches


@dataclass(frozen=True)
class VQVAEConfig(StackConfig):
    """Settings of an encoder of patches, a codebook, and a decoder (as in ViT-VQGAN, Yu 2022)."""

    layers: int = 4  # blocks of the encoder, and as many of the decoder
    width: int = 256
    heads: int = 4
    feed_forward_width: int = 1024
    activation: str = "gelu_tanh"
    norm_place: str = "pre"
    dropout: float = 0.0
    positions: str = "none"  # of a sequence; patches have sinusoids of their row and column
    image_size: tuple[int, int] = (32, 32)  # height, width
    patch_size: tuple[int, int] = (4, 4)  # pixels of a patch, which becomes one code
    channels: int = 3  # colours of an image: 3, or 1 for grey
    frames: int = 1  # images that are read together, as channels one after the other
    # Numbers that are made for each pixel, at first zeros. 0: one for each channel
    outputs: int = 0
    codes: int = 512  # vectors of the codebook; 0: none, states pass as they are
    code_width: int = 32  # entries of a code's vector
    decay: float = 0.98  # the share of the old value in the codebook's moving averages
    commitment: float = 0.25  # weight of the encoder's distance from its codes (eq. 3)
    # A code whose moving count falls below this share of the mean is set to a random patch's vector
    revived_below: float = 0.05

    def __post_init__(self):
        super().__post_init__()
        self.reads_both_ways("a stack over patches")
        patch_grid(self.image_size, self.patch_size)
        at_least(self, "model", 0, "codes", "commitment", "outputs")
        at_least(self, "model", 1, "code_width", "channels", "frames")
        fractions(self, "model", "decay", "revived_below")

    def choices(self) -> dict[str, tuple[str, ...]]:
        return CHOICES | {"positions": ("none",)}

    @property
    def grid(self) -> tuple[int, int]:
        """The number of rows and columns of patches, and of codes."""
        return patch_grid(self.image_size, self.patch_size)


class Codebook(nn.Module):
    """Replaces vectors by the nearest of K codes, whose gradient passes straight through.

    Codes are moving averages of the vectors nearest to them (van den Oord 2017, appendix A.1). A
    code that is hardly used moves to a random vector of the batch (Dhariwal 2020, section 3.1).
    """

    config: VQVAEConfig

    def setup(self):
        cfg = self.config
        shape = cfg.codes, cfg.code_width
        drawn = lambda: jax.random.normal(self.make_rng("params"), shape)  # noqa: E731
        self.sums = running(self, "sums", drawn)
        self.counts = running(self, "counts", lambda: jnp.ones(cfg.codes))

    @property
    def vectors(self) -> Float[Array, "k d"]:
        """The codes."""
        return self.sums / self.counts[:, None]

    def nearest(self, x: Float[Array, "b n d"]) -> Int[Array, "b n"]:
        """The code at the least squared distance from each vector."""
        codes = self.vectors
        return (jnp.square(codes).sum(axis=1) - 2 * x.astype(jnp.float32) @ codes.T).argmin(axis=-1)

    def __call__(
        self, x: Float[Array, "b n d"], key: Key[Array, ""] | None, rows: Bool[Array, "b"] | None
    ) -> tuple[Float[Array, "b n d"], Int[Array, "b n"]]:
        """The codes' vectors and their numbers. A key means training: averages move, by images
        where `rows` is True."""
        exact, ids = x.astype(jnp.float32), self.nearest(x)
        found = self.vectors[ids]
        if key is not None:
            real = jnp.ones(ids.shape, bool) if rows is None else rows[:, None] & (ids >= 0)
            self._move(jax.lax.stop_gradient(exact), ids, real, key)
            away = jnp.square(exact - jax.lax.stop_gradient(found)).mean(axis=-1)
            total = jnp.where(real, away, 0.0).sum()
            tell(self, "commitment", total, real.sum(dtype=jnp.float32), self.config.commitment)
        return (exact + jax.lax.stop_gradient(found - exact)).astype(x.dtype), ids

    def _move(self, x, ids, real, key):
        cfg, flat, weight = self.config, x.reshape(-1, x.shape[-1]), real.reshape(-1)
        chosen = jax.nn.one_hot(ids.reshape(-1), cfg.codes) * weight[:, None]
        counts = cfg.decay * self.counts + (1 - cfg.decay) * chosen.sum(axis=0)
        sums = cfg.decay * self.sums + (1 - cfg.decay) * chosen.T @ flat
        mean = self.counts.mean()
        dead = self.counts < cfg.revived_below * mean
        some = jax.random.categorical(key, jnp.where(weight, 0.0, -jnp.inf), shape=(cfg.codes,))
        real = weight.sum(dtype=jnp.float32)
        renew(self, "counts", jnp.where(dead, mean, counts), real)
        renew(self, "sums", jnp.where(dead[:, None], mean * flat[some], sums), real)


class VQVAE(Model):
    """Maps images to codes, and codes to images."""

    config: VQVAEConfig

    def setup(self):
        cfg = self.config
        self.patch_embedding = dense(cfg, cfg.width, True)
        self.encoder, self.decoder = Stack(cfg, cfg.layers), Stack(cfg, cfg.layers)
        if cfg.codes:
            self.narrow, self.wide = dense(cfg, cfg.code_width, True), dense(cfg, cfg.width, True)
            self.codebook = Codebook(cfg)
        pixels = cfg.patch_size[0] * cfg.patch_size[1]
        if cfg.outputs:  # which begin at zero
            zeros = nn.initializers.zeros
            self.final = Dense(pixels * cfg.outputs, True, cfg.compute_dtype, zeros)
        else:
            self.final = dense(cfg, pixels * cfg.channels, True)

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
    ) -> dict[str, Array]:
        """`images` [b h w c] made from those given, in float32, and their `codes` [b n], if the
        model has any. A key means training; images where `rows` is False enter no averages."""
        cfg = self.config
        keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
        if self.is_initializing():  # shapes are the config's, whatever the example
            images = jnp.zeros((1, *cfg.image_size, cfg.frames * cfg.channels))
        x, out = self._states(images, keys[0]), {}
        if cfg.codes:
            x, out["codes"] = self.codebook(self.narrow(x), keys[1], rows)
            x = self.wide(x)
        return out | {"images": self._made(x, images.shape[1:3], keys[2])}

    def codes(self, images: Float[Array, "b h w c"]) -> Int[Array, "b n"]:
        """The codes of the patches of images, row by row."""
        return self.codebook.nearest(self.narrow(self._states(images, None)))

    def pictures(self, codes: Int[Array, "b n"]) -> Float[Array, "b h w c"]:
        """The images, about from -1 to 1, that the patches' codes are decoded to."""
        x = self.wide(self.codebook.vectors[codes].astype(self.config.compute_dtype))
        return self._made(x, self.config.image_size, None)

    def _states(self, images, key):
        cfg = self.config
        x = self.patch_embedding(to_patches(images.astype(cfg.compute_dtype), cfg.patch_size))
        return self.encoder(self._placed(x, images.shape[1:3]), dropout_key=key)

    def _placed(self, x, size):
        cfg = self.config
        return x + grid_sinusoids(patch_grid(size, cfg.patch_size), cfg.width).astype(x.dtype)

    def _made(self, x, size, key):
        x = self.final(self.decoder(self._placed(x, size), dropout_key=key)).astype(jnp.float32)
        return from_patches(x, size, self.config.patch_size)


def example_inputs() -> tuple[Array, ...]:
    """The arguments of `init`, which takes the image's size from the config."""
    return (jnp.zeros((1, 1, 1, 1)),)


CONFIG = VQVAEConfig
build = VQVAE
STACKS = {"encoder": "layers", "decoder": "layers"}
RULES = ((r"(patch_embedding|narrow|wide|final)/kernel$", ()),)
