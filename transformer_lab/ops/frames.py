"""The frame between two others, by kernels of each pixel."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Frames = Float[Array, "b h w c"]


def numbers_of(size: int) -> int:
    """How many numbers for each pixel `between` takes with kernels of this size."""
    return 4 * size + 1


def between(
    first: Frames, last: Frames, numbers: Float[Array, "b h w k"], size: int
) -> Float[Array, "b h w c"]:
    """A weighted sum of both frames, each moved by kernels that every pixel has of its own.

    As in Niklaus 2017 (section 3) a kernel is one of `size` rows and one of as many columns; here
    the second moves what the first has moved. The numbers are what is added to kernels that move
    nothing, of which the mean is left out, so that the weights of a kernel sum to one; the last
    number is added to the first frame's share of a half. Zeros give the mean of both frames.
    """
    kernels = jnp.split(numbers[..., :-1], 4, axis=-1)
    share = 0.5 + numbers[..., -1:]
    moved = [
        _moved(_moved(frame, rows, 1, size), columns, 2, size)
        for frame, rows, columns in zip((first, last), kernels[:2], kernels[2:], strict=True)
    ]
    return share * moved[0] + (1 - share) * moved[1]


def _moved(frame, numbers, axis, size):
    """Each pixel from those around it along an axis; the border is repeated."""
    kernel = numbers - numbers.mean(axis=-1, keepdims=True)
    kernel = kernel.at[..., size // 2].add(1.0)
    room = [(size // 2, size // 2) if i == axis else (0, 0) for i in range(4)]
    wide, length = jnp.pad(frame, room, mode="edge"), frame.shape[axis]
    cut = [jax.lax.slice_in_dim(wide, i, i + length, axis=axis) for i in range(size)]
    return sum(kernel[..., i, None] * part for i, part in enumerate(cut))
