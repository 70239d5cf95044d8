"""The normalisation of pixels, which is stored with a checkpoint."""

from typing import Any, NamedTuple

import numpy as np

from transformer_lab.data.images.sources import Images
from transformer_lab.errors import LabError

_SAMPLE = 10_000  # images that the moments are taken from, evenly spaced


class Normalisation(NamedTuple):
    """The mean and standard deviation of each channel, of pixels scaled to 0..1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Any) -> Any:
        """uint8 [..., h, w, c] of NumPy or JAX -> float32, normalised by channel."""
        check_bytes(images)
        scale = np.asarray([255 * std for std in self.std], np.float32)
        shift = np.asarray(self.mean, np.float32) / np.asarray(self.std, np.float32)
        return images.astype(np.float32) / scale - shift


def check_bytes(images: Any) -> None:
    """Raises: LabError for images that are not uint8, which would silently be scaled wrongly."""
    if images.dtype != np.uint8:
        raise LabError(f"images of {images.dtype} are not the bytes that are normalised: uint8")


def moments(images: Images) -> Normalisation:
    """The mean and deviation of a set's channels; a constant channel gets deviation 1."""
    counts = np.zeros((images.channels, 256), np.int64)
    for i in np.linspace(0, len(images) - 1, min(len(images), _SAMPLE)).astype(int).tolist():
        for channel, count in enumerate(counts):
            count += np.bincount(images[i]["image"][..., channel].ravel(), minlength=256)
    share, levels = counts / counts.sum(axis=1, keepdims=True), np.arange(256) / 255
    mean = share @ levels
    std = np.sqrt((share * (levels - mean[:, None]) ** 2).sum(axis=1))
    return Normalisation(tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist()))
