"""Towers of images, texts and sounds into one space (VATT: Akbari 2021, of separate encoders)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.layers.basic import dense
from transformer_lab.models import two_towers
from transformer_lab.models.two_towers import TwoTowers, TwoTowersConfig
from transformer_lab.models.vision import Vision, VisionConfig
from transformer_lab.ops.pooling import normalize


@dataclass(frozen=True)
class ThreeTowersConfig(TwoTowersConfig):
    """Settings of two towers, and of a third one that reads spectra as images of one colour, frames
    by bands, in patches (AST: Gong 2021); the defaults take 10.24 s in patches of 16 x 16."""

    sound: VisionConfig = VisionConfig(
        image_size=(1024, 128), patch_size=(16, 16), channels=1, head="none"
    )


class ThreeTowers(TwoTowers):
    """Maps images, texts and sounds to vectors of length 1, close together where they match."""

    config: ThreeTowersConfig

    def setup(self):
        super().setup()
        self.sound = Vision(self.config.sound)
        self.sound_projection = dense(self.config.sound, self.config.common_width, False)

    def __call__(
        self,
        images: Float[Array, "n h w c"],
        tokens: Int[Array, "m t"],
        dropout_key: Key[Array, ""] | None = None,
        seen: Bool[Array, "m t"] | None = None,
        rows: Bool[Array, "n"] | None = None,
        sounds: Float[Array, "k frames bands"] | None = None,
    ) -> dict[str, Float[Array, "..."]]:
        """The two towers' outputs and, given spectra, `sound` [k d]."""
        out = super().__call__(images, tokens, dropout_key, seen, rows)
        if self.is_initializing():
            sounds = jnp.zeros((1, 1, 1))
        if sounds is not None:
            key = None if dropout_key is None else jax.random.fold_in(dropout_key, 2)
            out["sound"] = self.encode_sounds(sounds, key)
        return out

    def encode_sounds(
        self, sounds: Float[Array, "n frames bands"], dropout_key: Key[Array, ""] | None = None
    ) -> Float[Array, "n d"]:
        """The float32 vectors, of length 1, of spectra of `ops.spectrograms.log_mel`: as many
        frames and bands as model.sound.image_size says."""
        features = self.sound(sounds[..., None], dropout_key=dropout_key)["features"]
        return normalize(self.sound_projection(features).astype(jnp.float32))


example_inputs = two_towers.example_inputs
CONFIG = ThreeTowersConfig
build = ThreeTowers
RULES = ((r"sound_projection/kernel$", ()), *two_towers.RULES)
