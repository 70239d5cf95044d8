"""Statistics that describe what an attention head does: means of its weights over the queries.

Weights are [.., T queries, S keys], each query's a distribution, or zeros where it may attend to
nothing.
"""

import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float


def entropy(weights: Float[Array, "*n t s"]) -> Float[Array, "*n"]:
    """Mean entropy -sum w ln w of a query's weights, in nats: 0 for one key, ln S for all alike."""
    return -xlogy(weights, weights).sum(axis=-1).mean(axis=-1)


def mean_distance(
    weights: Float[Array, "*n t t"], places: Float[Array, "t p"] | None = None
) -> Float[Array, "*n"]:
    """Mean distance of query and key, weighted by attention (Dosovitskiy 2021, figure 7).

    `places` are coordinates [T, p], such as a patch's row and column; None stands for 0, 1, 2, ...
    """
    if places is None:
        places = jnp.arange(weights.shape[-1], dtype=weights.dtype)[:, None]
    apart = jnp.linalg.norm(places[:, None] - places[None, :], axis=-1)
    return (weights * apart).sum(axis=(-1, -2)) / weights.sum(axis=(-1, -2))


def patch_places(grid: tuple[int, int]) -> Float[Array, "t 2"]:
    """The (row, column) of each patch of an image, in the order of the patch sequence."""
    return jnp.moveaxis(jnp.indices(grid, jnp.float32), 0, -1).reshape(-1, 2)


def previous_token_score(weights: Float[Array, "*n t t"]) -> Float[Array, "*n"]:
    """Mean weight on the token just before the query's (Olsson 2022, head activations)."""
    return jnp.diagonal(weights, -1, -2, -1).mean(axis=-1)


def induction_score(weights: Float[Array, "*n t t"], period: int) -> Float[Array, "*n"]:
    """Mean weight on the token that followed the query's token at its last occurrence, in a
    sequence of random tokens repeated with this period (Olsson 2022, "prefix matching")."""
    # Query t attends to t + 1 - period, the token after the last occurrence of its own.
    return jnp.diagonal(weights, 1 - period, -2, -1)[..., 1:].mean(axis=-1)
