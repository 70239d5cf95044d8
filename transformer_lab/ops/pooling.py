"""Pooling: one vector for a whole text, from the vectors of its tokens."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_lab.errors import known

POOLINGS = ("mean", "cls", "max")


def pool(
    states: Float[Array, "b t d"], mask: Bool[Array, "b t"], kind: str = "mean"
) -> Float[Array, "b d"]:
    """The mean or maximum over real tokens (Reimers 2019, section 3), or the first token's vector.

    A text without real tokens gives zeros. The result is float32 whatever the states are.

    States (1, 2), (3, 0), (9, 9) with the last as padding: the mean is (2, 1), the maximum (3, 2).
    """
    known("pooling ", kind, POOLINGS)
    states, real = states.astype(jnp.float32), mask[..., None]
    if kind == "cls":
        return jnp.where(real[:, 0], states[:, 0], 0.0)
    if kind == "max":
        highest = jnp.where(real, states, -jnp.inf).max(axis=1)
        return jnp.where(real.any(axis=1), highest, 0.0)
    return jnp.where(real, states, 0.0).sum(axis=1) / jnp.maximum(real.sum(axis=1), 1)


def normalize(vectors: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    """The vectors scaled to Euclidean length 1; a zero vector stays zero."""
    square = jnp.square(vectors).sum(axis=-1, keepdims=True)
    return vectors * jnp.where(square > 0, jnp.maximum(square, 1e-24), 1.0) ** -0.5
