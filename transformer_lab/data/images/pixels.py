"""Images as sequences of grey levels, row by row, for a language model of pixels (Chen 2020)."""

import io

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from transformer_lab.errors import LabError

LEVELS = "0123456789abcdefghijklmnopqrstuvwxyz"  # one character for each level of grey
_CELL, _GAP = 8, 4  # in `sheet`, the width of a pixel and the gap between images

Levels = UInt8[np.ndarray, "_ h w"]  # 0 .. levels - 1


def to_levels(images: UInt8[np.ndarray, "n y x"], shrink: int, levels: int) -> Levels:
    """The mean of each square of `shrink` pixels as a level: floor(mean * levels / 256)."""
    n, y, x = images.shape
    if y % shrink or x % shrink:
        raise LabError(f"task.shrink = {shrink} does not divide images of {y} x {x}: use 1")
    squares = images.reshape(n, y // shrink, shrink, x // shrink, shrink)
    sums = squares.sum(axis=(2, 4), dtype=np.int64)
    return (sums * levels // (256 * shrink**2)).astype(np.uint8)


def to_texts(levels: Levels) -> list[str]:
    """Each image as a text with a character for each level, from left to right, then downwards."""
    letters = np.frombuffer(LEVELS.encode(), np.uint8)
    return [letters[one].tobytes().decode() for one in levels]


def blind_bits(train: Levels, held: Levels, levels: int) -> float:
    """Bits per pixel of `held` by each level's frequency (plus 1) at its position in `train`."""
    flat = train.reshape(len(train), -1)
    counts = 1 + np.stack([(flat == level).sum(axis=0) for level in range(levels)])
    places = held.reshape(len(held), -1).astype(np.int64)
    chances = np.take_along_axis(counts / counts.sum(axis=0), places, axis=0)
    return float(-np.log2(chances).mean())


def sheet(rows: Float[np.ndarray, "r c h w"], levels: int) -> bytes:
    """A PNG image of rows of images given as levels; NaN is white, as are the gaps between them."""
    grey = np.nan_to_num(rows * 255 / (levels - 1), nan=255).round().astype(np.uint8)
    return grid(grey[..., None], _CELL)


def grid(rows: UInt8[np.ndarray, "r c h w k"], enlarged: int = 2) -> bytes:
    """A PNG image of rows of images, each pixel a square of this side, with white gaps between."""
    large = rows.repeat(enlarged, axis=2).repeat(enlarged, axis=3)
    gaps = (0, 0), (0, 0), (_GAP, 0), (_GAP, 0), (0, 0)
    spaced = np.pad(large, gaps, constant_values=255)
    r, c, h, w, k = spaced.shape
    flat = spaced.swapaxes(1, 2).reshape(r * h, c * w, k)
    file = io.BytesIO()
    Image.fromarray(flat[..., 0] if k == 1 else flat).save(file, "PNG")
    return file.getvalue()
