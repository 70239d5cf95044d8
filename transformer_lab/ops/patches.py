"""Images as sequences of patches, and encodings of the patches' rows and columns."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_lab.errors import LabError
from transformer_lab.ops.positions import sinusoids

Size = tuple[int, int]  # (height, width) in pixels, or (rows, columns) of a grid of patches


def patch_grid(image: Size, patch: Size) -> Size:
    """How many rows and columns of patches cover an image; LabError unless they fit exactly."""
    if min(*image, *patch) < 1 or image[0] % patch[0] or image[1] % patch[1]:
        fit = [max(-(-i // max(p, 1)), 1) * max(p, 1) for i, p in zip(image, patch, strict=True)]
        raise LabError(
            f"image_size = {image[0]}x{image[1]} is no multiple of patch_size = "
            f"{patch[0]}x{patch[1]}: images of {fit[0]}x{fit[1]} would do, or another patch"
        )
    return image[0] // patch[0], image[1] // patch[1]


def to_patches(images: Float[Array, "b h w c"], patch: Size) -> Float[Array, "b n p"]:
    """Cuts images into patches, row by row, each as ph * pw * c numbers (Dosovitskiy 2021, 3.1).

    A linear map of them equals a convolution whose stride is its kernel's size. An image of 4 x 6
    in patches of 2 x 2 is a sequence of 6: the patch in row 1, column 2 is number 5.
    """
    b, h, w, c = images.shape
    rows, columns = patch_grid((h, w), patch)
    split = images.reshape(b, rows, patch[0], columns, patch[1], c)
    return jnp.swapaxes(split, 2, 3).reshape(b, rows * columns, -1)


def from_patches(
    patches: Float[Array, "b n p"], image: Size, patch: Size
) -> Float[Array, "b h w c"]:
    """The images that `to_patches` cuts into these patches."""
    rows, columns = patch_grid(image, patch)
    split = patches.reshape(len(patches), rows, columns, *patch, -1)
    return jnp.swapaxes(split, 2, 3).reshape(len(patches), *image, -1)


def to_groups(clips: Float[Array, "b f h w c"], frames: int) -> Float[Array, "b g h w k"]:
    """Groups of `frames` consecutive frames as images of `frames` * c channels, frame by frame.

    The patches of such an image are the tubelets of the clip (Arnab 2021, section 3.2)."""
    b, f, h, w, c = clips.shape
    split = clips.reshape(b, f // frames, frames, h, w, c)
    return jnp.moveaxis(split, 2, 4).reshape(b, f // frames, h, w, frames * c)


def grid_sinusoids(grid: Size, width: int) -> Float[Array, "n d"]:
    """Sinusoids of each patch's column in half of the dims and of its row in the other half, each
    with sines before cosines (Chen 2021, section 5.1). The width must be a multiple of 4."""
    rows, columns = (axis.reshape(-1) for axis in np.indices(grid))
    halves = (sinusoids(jnp.asarray(x), width // 2, halves=True) for x in (columns, rows))
    return jnp.concatenate([*halves], axis=-1)


def resize_positions(
    table: Float[Array, "t d"], old: Size, new: Size, extra: int = 0
) -> Float[Array, "s d"]:
    """Position vectors of one grid interpolated to another, bicubic (Dosovitskiy 2021, 3.2).

    The first `extra` vectors belong to tokens that are no patches, and are kept. The kernel is
    PyTorch's (a = -0.75, half-pixel centres, the border repeated).
    """
    if old == new:
        return table
    patches = table[extra:].reshape(*old, -1)
    down, across = (jnp.asarray(_resampling(a, b)) for a, b in zip(old, new, strict=True))
    resized = jnp.einsum("ij,jkd,lk->ild", down, patches, across)
    patches = resized.reshape(-1, table.shape[-1]).astype(table.dtype)
    return jnp.concatenate([table[:extra], patches])


def _resampling(old: int, new: int) -> Float[np.ndarray, "new old"]:
    """The weight of each old position in each new one, along one axis (Keys 1981, eq. 4)."""
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    matrix, a = np.zeros((new, old)), -0.75
    # The four nearest old positions of each new one, weighted by Keys' cubic of their distance.
    for tap in range(-1, 3):
        place = np.floor(centres) + tap
        x = np.abs(centres - place)
        near, far = ((a + 2) * x - (a + 3)) * x**2 + 1, a * (((x - 5) * x + 8) * x - 4)
        weight = np.where(x <= 1, near, far)
        np.add.at(matrix, (np.arange(new), np.clip(place, 0, old - 1).astype(int)), weight)
    return matrix.astype(np.float32)
