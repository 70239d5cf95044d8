"""Segments of a sequence as rows of a batch."""

import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped


def as_rows(
    x: Shaped[Array, "b *shape"], starts: Int[Array, "n"], length: int, axis: int
) -> Shaped[Array, "bn *parts"]:
    """The parts of `length` that begin at each of the starts along an axis, as rows of the batch:
    those of the first row come first. Row (5, 6, 7) with starts 0 and 1 and length 2 gives (5, 6)
    and (6, 7)."""
    parts = jnp.take(x, starts[:, None] + jnp.arange(length), axis=axis)
    rows = len(x) * len(starts)
    return jnp.moveaxis(parts, axis, 1).reshape(
        rows, *x.shape[1:axis], length, *x.shape[axis + 1 :]
    )
