"""Texts to pictures by codes: a VQ-VAE's codes as words of a decoder (DALL-E, Ramesh 2021), or of a
stack that sees all of them and fills in those that are hidden (MaskGIT, Chang 2022)."""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer_lab.errors import LabError
from transformer_lab.models import decoder, vqvae
from transformer_lab.models.decoder import Decoder, DecoderConfig
from transformer_lab.models.model import Model
from transformer_lab.models.vqvae import VQVAE, VQVAEConfig


@dataclass(frozen=True)
class PictureCodesConfig:
    """Settings of the VQ-VAE and of the stack over texts and codes.

    text.mask says which: "causal" makes codes in order, "prefix" fills in hidden ones.
    text.max_length holds a text and a picture's codes, and text.vocab_size are the text's pieces.
    """

    image: VQVAEConfig = VQVAEConfig()
    text: DecoderConfig = DecoderConfig(layers=6, width=256, heads=4, feed_forward_width=1024,
                                        max_length=80)  # fmt: skip

    def __post_init__(self):
        if not self.image.codes or self.max_length < 1:
            raise LabError(
                f"model.image.codes = {self.image.codes} must be at least 1, and "
                f"model.text.max_length = {self.text.max_length} more than the {self.count} codes "
                "of a picture"
            )

    @property
    def count(self) -> int:
        """How many codes a picture has, one for each of its patches."""
        return self.image.grid[0] * self.image.grid[1]

    @property
    def max_length(self) -> int:
        """The tokens of a text, padding included."""
        return self.text.max_length - self.count

    @property
    def vocab_size(self) -> int | None:
        """How many pieces the tokenizer of the texts knows; None until it is trained."""
        return self.text.vocab_size

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of a picture in pixels, as the VQ-VAE has them."""
        return self.image.image_size

    @property
    def channels(self) -> int:
        """The numbers of a pixel, such as 3 for RGB."""
        return self.image.channels

    @property
    def dtype(self) -> str:
        """The type in which the stack computes."""
        return self.text.dtype

    @property
    def in_order(self) -> bool:
        """Whether each code is predicted from the text and the codes before it."""
        return self.text.mask == "causal"


class PictureCodes(Model):
    """Logits of a picture's codes given its text. In the stack's table the codes come after the
    text's pieces, and the code that hides others is the last one."""

    config: PictureCodesConfig

    def setup(self):
        cfg = self.config
        self.image = VQVAE(cfg.image)
        rows = cfg.vocab_size + cfg.image.codes + 1
        self.text = Decoder(replace(cfg.text, vocab_size=rows))

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        codes: Int[Array, "b n"],
        dropout_key: Key[Array, ""] | None = None,
    ) -> Float[Array, "b n k"]:
        """The logits of each code; padding of a text is read as any token, so that codes always
        have the same positions. A model not in order reads its number of codes as a hidden one."""
        cfg, before = self.config, tokens.shape[1]
        if self.is_initializing():
            self.image(*vqvae.example_inputs())
        ids = jnp.concatenate([tokens, codes + cfg.vocab_size], axis=1)
        if cfg.in_order:
            states = self.text.states(ids[:, :-1], dropout_key)[:, before - 1 :]
        else:
            whole = jnp.ones(ids.shape, bool)
            states = self.text.states(ids, dropout_key, prefix=whole)[:, before:]
        return self._of_codes(self.text.logits(states))

    def codes(self, images: Float[Array, "b h w c"]) -> Int[Array, "b n"]:
        """The number of the code of each patch, row by row, of images from -1 to 1."""
        return self.image.codes(images)

    def pictures(self, codes: Int[Array, "b n"]) -> Float[Array, "b h w c"]:
        """The images, about from -1 to 1, that the patches' codes are decoded to."""
        return self.image.pictures(codes)

    def start(self, tokens: Int[Array, "b t"]) -> tuple[Float[Array, "b k"], Any]:
        """The logits of each picture's first code, and a cache for the others."""
        length = tokens.shape[1] + self.config.count
        logits, cache = self.text.prefill(tokens, None, length)
        return self._of_codes(logits[:, -1]), cache

    def step(self, codes: Int[Array, "b"], cache: Any) -> tuple[Float[Array, "b k"], Any]:
        """The logits of the next code, and the cache with these codes."""
        logits, cache = self.text.step(codes[:, None] + self.config.vocab_size, cache)
        return self._of_codes(logits[:, 0]), cache

    def _of_codes(self, logits):
        first = self.config.vocab_size
        return logits[..., first : first + self.config.image.codes]


def example_inputs() -> tuple[Array, ...]:
    """The arguments of a smallest call, for `init` and for shapes."""
    return jnp.zeros((1, 2), jnp.int32), jnp.zeros((1, 2), jnp.int32)


CONFIG = PictureCodesConfig
build = PictureCodes
RULES = (*decoder.RULES, *vqvae.RULES)
