"""Images as sequences of grey levels, with the class as target at the last pixel (Tay 2020, 2.2.4).

Images larger than the length are shrunk to the means of squares: 784 is the length of
Fashion-MNIST, 196 that of half its height and width. Class c is the token c."""

from typing import Any

import numpy as np

from transformer_lab.data.images.pixels import to_levels
from transformer_lab.data.images.sources import ImageConfig, load_images
from transformer_lab.data.sequences import Sequences, at_end
from transformer_lab.errors import LabError

VOCABULARY = 256


def sequences(
    config: Any, split: str, length: int, size: int, draw: np.random.Generator
) -> Sequences:
    """The images of a split, or `size` of them chosen at random (0: all)."""
    found = load_images(ImageConfig(source=config.images, path=config.path, channels=1))
    images, levels = getattr(found, split), config.vocabulary or VOCABULARY
    height, width = found.train.size
    shrink = round((height * width / length) ** 0.5)
    if not shrink or length * shrink**2 != height * width or height % shrink or width % shrink:
        raise LabError(
            f"images of {height} x {width} pixels do not make sequences of {length}: set "
            f"config.data.length = {height * width}, or that over a square"
        )
    if not len(found.labels) <= levels <= 256:
        raise LabError(
            f"config.data.vocabulary = {levels} levels must be at most 256, and as many as the "
            f"{len(found.labels)} classes"
        )
    rows = np.arange(len(images))
    if size and size < len(rows):
        rows = np.sort(draw.permutation(rows)[:size])
    some = [images[int(row)] for row in rows]
    grey = np.stack([one["image"][..., 0] for one in some])
    tokens = to_levels(grey, shrink, levels).reshape(len(some), length).astype(np.int64)
    return at_end(tokens, np.array([[one["label"]] for one in some]))
