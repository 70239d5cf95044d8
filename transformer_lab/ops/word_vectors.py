"""What word vectors are trained by, and what lies near in them."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


def negative_sampling(
    logits: Float[Array, "*rows k"], mask: Bool[Array, "*rows k"]
) -> Float[Array, "*rows"]:
    """-log s(true) - sum log s(-drawn), s the logistic function; the true word stands first.

    Drawn words that the mask leaves out do not count (Mikolov 2013b, eq. 4).
    """
    drawn = jnp.where(mask[..., 1:], jax.nn.softplus(logits[..., 1:]), 0.0)
    return jax.nn.softplus(-logits[..., 0]) + drawn.sum(axis=-1)


def nearest(
    vectors: Float[np.ndarray, "v d"], query: Float[np.ndarray, "d"], count: int
) -> tuple[Int[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """The rows of greatest cosine with the query, best first, and the cosines."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = vectors @ query / np.maximum(norms, 1e-12)
    best = np.argsort(-cosines, kind="stable")[:count]
    return best, cosines[best]
