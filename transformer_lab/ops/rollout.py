"""How much of each input reaches each output through all layers' attention."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float


def rollout(
    weights: Sequence[Float[Array, "b _ t t"]], residual: float = 0.5
) -> Float[Array, "b t t"]:
    """Attention rollout A_L .. A_1, where A = residual I + (1 - residual) mean over heads, its rows
    scaled to sum to 1 (Abnar & Zuidema 2020, section 3). The weights come from the lowest layer
    up."""
    identity = jnp.eye(weights[0].shape[-1], dtype=jnp.float32)
    found = identity
    for layer in weights:
        mixed = residual * identity + (1 - residual) * layer.mean(axis=1, dtype=jnp.float32)
        # Without a residual, a query that attends to nothing has a sum of 0.
        sums = mixed.sum(axis=-1, keepdims=True)
        found = mixed / jnp.where(sums > 0, sums, 1.0) @ found
    return found
