"""What a head does, in numbers: means over the queries of attention weights.

Weights are [.., T queries, S keys], each row a distribution or, where nothing may be attended, 0.
"""

import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float


def entropy(weights: Float[Array, "*n t s"]) -> Float[Array, "*n"]:
    """-sum w ln w of a row, in nats: 0 is one key, ln S all keys alike."""
    return -xlogy(weights, weights).sum(axis=-1).mean(axis=-1)


def mean_distance(
    weights: Float[Array, "*n t t"], places: Float[Array, "t p"] | None = None
) -> Float[Array, "*n"]:
    """Mean distance between query and key by weight (Dosovitskiy 2021, figure 7, right).

    `places` are coordinates, such as a patch's row and column; without them a row of tokens.
    """
    if places is None:
        places = jnp.arange(weights.shape[-1], dtype=weights.dtype)[:, None]
    apart = jnp.linalg.norm(places[:, None] - places[None, :], axis=-1)
    return (weights * apart).sum(axis=(-1, -2)) / weights.sum(axis=(-1, -2))


def patch_places(grid: tuple[int, int]) -> Float[Array, "t 2"]:
    """Row and column of the patches of an image, row by row."""
    return jnp.moveaxis(jnp.indices(grid, jnp.float32), 0, -1).reshape(-1, 2)


def previous_token_score(weights: Float[Array, "*n t t"]) -> Float[Array, "*n"]:
    """Mean weight on the token just before (Olsson 2022, head activation evaluators)."""
    return jnp.diagonal(weights, -1, -2, -1).mean(axis=-1)


def induction_score(weights: Float[Array, "*n t t"], period: int) -> Float[Array, "*n"]:
    """Mean weight on the token that followed last time, over a sequence of random tokens that
    repeats with the period (Olsson 2022, "prefix matching")."""
    return jnp.diagonal(weights, 1 - period, -2, -1)[..., 1:].mean(axis=-1)
