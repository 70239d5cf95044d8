"""Reads transparent pictures, and puts them on a background, unchanged or varied for training."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image

from transformer_lab.data.batching import Draws, RowPlan
from transformer_lab.errors import LabError

Pixels = UInt8[np.ndarray, "n h w 3"]


def draw_plan(examples: int, rows: int, seed: int) -> RowPlan:
    """A plan of batches of `rows` examples, each with a random seed for its variation."""
    draws = Draws(3, 2**63, True)
    return RowPlan("drawings", np.ones(examples, np.int64), 1, rows, seed, draws)


def read_pictures(files: Sequence[str | Path], side: int) -> UInt8[np.ndarray, "n {side} {side} 4"]:
    """Pictures as RGBA with colours multiplied by opacity, which scaling needs; each is scaled so
    that its longer side has `side` pixels, and lies in the middle of a transparent square."""
    found = np.zeros((len(files), side, side, 4), np.uint8)
    for row, file in zip(found, files, strict=True):
        try:
            with Image.open(file) as image:
                size = [max(1, round(n * side / max(image.size))) for n in image.size]
                picture = image.convert("RGBA").resize(size, reducing_gap=2.0)
        except (OSError, SyntaxError) as error:
            raise LabError(f"{file} cannot be read as an image ({error})") from error
        left, top = ((side - n) // 2 for n in size)
        pixels = np.asarray(picture, np.uint16)
        part = row[top : top + size[1], left : left + size[0]]
        part[..., :3] = (pixels[..., :3] * pixels[..., 3:] + 127) // 255
        part[..., 3] = pixels[..., 3]
    return found


def plain(pictures: UInt8[np.ndarray, "n s s 4"], size: tuple[int, int]) -> Pixels:
    """The pictures, scaled to `size`, on a white background."""
    if min(size) < 1:
        raise LabError(f"model.image.image_size = {size} must be at least 1")
    still = np.ones((len(pictures), 2)), np.zeros((len(pictures), 2))
    placed = _place(pictures, size, *still)
    return _bytes(placed[..., :3] + (1 - placed[..., 3:]))


def varied(
    pictures: UInt8[np.ndarray, "n s s 4"],
    size: tuple[int, int],
    mirrored: Bool[np.ndarray, "n"],
    rng: np.random.Generator,
    strength: float = 1.0,
) -> Pixels:
    """Randomly moved, scaled, mirrored and recoloured pictures on a random background."""
    n = len(pictures)
    zoom = np.exp(strength * rng.uniform(-0.35, 0.15, (n, 1)))
    zoom = zoom * np.exp(strength * rng.uniform(-0.1, 0.1, (n, 2)))
    shift = strength * rng.uniform(-0.12, 0.12, (n, 2))
    zoom[:, 1] *= np.where(mirrored & (rng.random(n) < 0.5), -1, 1)
    placed = _place(pictures, size, zoom, shift)
    paper = np.where(rng.random((n, 1)) < 0.5, 1.0, 1 - 0.7 * strength * rng.random((n, 3)))
    colours = placed[..., :3] + (1 - placed[..., 3:]) * paper[:, None, None].astype(np.float32)
    return _bytes(_recolour(colours, strength, rng))


def _recolour(colours: Float[np.ndarray, "n h w 3"], strength: float, rng: np.random.Generator):
    """Applies a random colour matrix near the identity, at times grey, and a random brightness."""
    n = len(colours)
    grey = strength * rng.uniform(-0.2, 0.5, (n, 1, 1)) + (rng.random((n, 1, 1)) < 0.1 * strength)
    grey = np.minimum(grey, 1.0)
    matrix = (1 - grey) * np.eye(3) + grey * np.array([[0.3], [0.59], [0.11]])
    matrix = matrix + strength * rng.normal(0, 0.06, (n, 3, 3))
    contrast = np.exp(strength * rng.uniform(-0.4, 0.2, (n, 1, 1)))
    light = strength * rng.uniform(-0.15, 0.15, (n, 1, 1)) + 0.5 * (1 - contrast)
    flat = colours.reshape(n, -1, 3) @ (contrast * matrix).astype(np.float32)
    return (flat + light.astype(np.float32)).reshape(colours.shape)


def _place(pictures, size, zoom, shift):
    """float32 [n, h, w, 4]: pictures scaled and moved by shares of their size, zeros around."""
    down, across = (_weights(size[i], pictures.shape[1], zoom[:, i], shift[:, i]) for i in (0, 1))
    n, side = pictures.shape[:2]
    x = pictures.astype(np.float32).reshape(n, side, -1) * np.float32(1 / 255)
    x = _columns(down @ x, side)
    return _columns(across @ x, size[0]).reshape(n, *size, 4)


def _columns(x: np.ndarray, size: int) -> np.ndarray:
    """[n, a, size * 4] -> [n, size, a * 4]: swaps the two directions of the image."""
    n, a, _ = x.shape
    return np.swapaxes(x.reshape(n, a, size, 4), 1, 2).reshape(n, size, a * 4)


def _weights(size: int, side: int, zoom: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """float32 [n, size, side]: the weight of each old line in each new one. The filter is a
    triangle, as wide as the coarser of both."""
    places = (np.arange(size) + 0.5) / size - 0.5
    at = side * (0.5 + shift[:, None] + places / zoom[:, None])
    reach = np.maximum(side / (size * np.abs(zoom)), 1.0)[:, None, None]
    around = int(np.ceil(reach.max()))
    lines = np.arange(-around, side + around) + 0.5
    near = np.maximum(1 - np.abs(at[..., None] - lines) / reach, 0)
    near /= np.maximum(near.sum(axis=2, keepdims=True), 1e-6)
    return near[..., around : around + side].astype(np.float32)


def _bytes(colours: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(colours, 0, 1) * 255).astype(np.uint8)
