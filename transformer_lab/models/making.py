"""Protocols of models that make images; see `models.base`."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.models.base import Sees, Vocabulary


@runtime_checkable
class Depicts(Sees, Vocabulary, Protocol):
    """Settings of a model that makes images from texts."""


class Denoiser(Protocol):
    """Predicts the noise, or the velocity, in noisy images with given texts."""

    config: Depicts

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        times: Float[Array, "b"],
        tokens: Int[Array, "b t"],
        mask: Bool[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
    ) -> Float[Array, "b h w c"]:
        """A prediction for each pixel; times are from 0 (clean) to 1 (noise), and a text without a
        real token (`mask`) is no condition."""


class ImageMaker(Protocol):
    """Makes images from images: those given, by way of codes, or what enlarged copies lack."""

    config: Sees

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
    ) -> dict[str, Array]:
        """`images` [b h w c], and perhaps the `codes` [b n] that they are made of. Images where
        `rows` is False are padding, and enter no running statistics."""


@runtime_checkable
class Codes(Depicts, Protocol):
    """Settings of a model that makes images of codes."""

    image: Any  # the settings of the model between images and codes
    text: Any  # the settings of the stack over texts and codes
    count: int  # the codes of an image
    in_order: bool  # whether it predicts each code from those before it, or hidden codes


class CodeModel(Protocol):
    """Predicts an image's codes from a text; see `models.picture_codes`."""

    config: Codes

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        codes: Int[Array, "b n"],
        dropout_key: Key[Array, ""] | None = None,
    ) -> Float[Array, "b n k"]:
        """The logits of each code. The number of kinds of codes stands for a hidden one."""

    def codes(self, images: Float[Array, "b h w c"]) -> Int[Array, "b n"]:
        """The number of the code of each patch, row by row, of images from -1 to 1."""

    def pictures(self, codes: Int[Array, "b n"]) -> Float[Array, "b h w c"]:
        """The images, about from -1 to 1, that the patches' codes are decoded to."""

    def start(self, tokens: Int[Array, "b t"]) -> tuple[Float[Array, "b k"], Any]:
        """The logits of each image's first code, and a cache for the others."""

    def step(self, codes: Int[Array, "b"], cache: Any) -> tuple[Float[Array, "b k"], Any]:
        """The logits of the next code, and the cache with these codes."""
