"""The loss that word vectors are trained with, and the search for the nearest vectors."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


def negative_sampling(
    logits: Float[Array, "*rows k"], mask: Bool[Array, "*rows k"]
) -> Float[Array, "*rows"]:
    """-log s(true) - sum log s(-drawn), where s is the logistic function (Mikolov 2013b, eq. 4).

    The logits of a center and a context word, the true one first, then k - 1 drawn ones; those
    where the mask is False do not count.
    """
    drawn = jnp.where(mask[..., 1:], jax.nn.softplus(logits[..., 1:]), 0.0)
    return jax.nn.softplus(-logits[..., 0]) + drawn.sum(axis=-1)


def nearest(
    vectors: Float[np.ndarray, "v d"], query: Float[np.ndarray, "d"], count: int
) -> tuple[Int[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """The indices of the vectors with the greatest cosines to the query, best first; cosines."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = vectors @ query / np.maximum(norms, 1e-12)
    best = np.argsort(-cosines, kind="stable")[:count]
    return best, cosines[best]
