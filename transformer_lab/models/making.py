"""Protocols of models that make images; see `models.base`."""

from typing import Protocol, runtime_checkable

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
    """Makes images from images."""

    config: Sees

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
    ) -> dict[str, Array]:
        """`images` [b h w c], and perhaps the `codes` [b n] that they are made of. Images where
        `rows` is False are padding, and enter no running statistics."""
