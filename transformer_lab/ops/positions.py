"""Position encodings."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def sinusoids(
    positions: Int[Array, "*length"], width: int, *, halves: bool = False, base: float = 10_000.0
) -> Float[Array, "*length width"]:
    """PE[pos, 2i] = sin(pos / base^(2i/width)), PE[pos, 2i+1] = cos(...) (Vaswani 2017, 3.5).

    With `halves` all sines stand before all cosines, as in Marian and Tensor2Tensor; an odd width
    has one sine more than cosines.
    """
    frequencies = base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    sines, cosines = jnp.sin(angles), jnp.cos(angles)
    if halves:
        return jnp.concatenate([sines, cosines], axis=-1)[..., :width]
    return jnp.stack([sines, cosines], axis=-1).reshape(*positions.shape, -1)[..., :width]
