"""Scores of documents for queries: products of vectors, or of the vectors of their tokens."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def max_similarity(
    queries: Float[Array, "q t d"],
    query_mask: Bool[Array, "q t"],
    documents: Float[Array, "n s d"],
    document_mask: Bool[Array, "n s"],
) -> Float[Array, "q n"]:
    """ColBERT's late interaction (Khattab 2020, equation 3): each token of a query takes its most
    similar token of the document. Their mean is returned, not their sum, so that queries of
    different lengths have scores of one size, as cosines have; the order is the same."""
    near = jnp.einsum("qtd,nsd->qnts", queries, documents)
    best = jnp.where(document_mask[None, :, None], near, -1.0).max(axis=3)
    total = jnp.where(query_mask[:, None], best, 0.0).sum(axis=2)
    return total / jnp.maximum(query_mask.sum(axis=1), 1)[:, None]
