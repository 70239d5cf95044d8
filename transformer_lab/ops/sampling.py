"""Choosing the next token from logits."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key


def restrict(
    logits: Float[Array, "b v"], top_k: Int[Array, ""], top_p: Float[Array, ""]
) -> Float[Array, "b v"]:
    """The logits with minus infinity outside the k likeliest tokens (Fan 2018) and the nucleus, the
    fewest likeliest tokens whose probabilities reach p (Holtzman 2020, section 3.1), at least one.

    top_k = 0, or above V, keeps all of them; so does top_p = 1. The nucleus is that of the
    renormalised k. Tokens that tie with the last one kept are kept too. With probabilities 0.5,
    0.3, 0.2, top_p = 0.6 keeps the first two.
    """
    v = logits.shape[-1]
    k = jnp.where((top_k <= 0) | (top_k > v), v, top_k)
    falling = -jnp.sort(-logits, axis=-1)
    falling = jnp.where(jnp.arange(v) < k, falling, -jnp.inf)
    probabilities = jax.nn.softmax(falling, axis=-1)
    # A token is in the nucleus if those before it do not reach p yet.
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    kept = (before < top_p) & (falling > -jnp.inf)
    count = jnp.where(top_p >= 1.0, k, jnp.maximum(kept.sum(axis=-1), 1))
    last = jnp.take_along_axis(falling, jnp.broadcast_to(count - 1, (len(logits),))[:, None], -1)
    return jnp.where(logits >= last, logits, -jnp.inf)


def sample(
    logits: Float[Array, "b v"],
    keys: Key[Array, "b"],
    temperature: Float[Array, ""],
    top_k: Int[Array, ""],
    top_p: Float[Array, ""],
    *,
    restricted: bool = True,
) -> Int[Array, "b"]:
    """One token for each example, with its own key, from softmax(logits / temperature).

    The logits are first restricted (see `restrict`), unless `restricted` is False. The temperature
    is above 0; the greedy choice, to which it tends at 0, is `argmax`.
    """
    logits = logits.astype(jnp.float32)
    # Shifted to at most 0, so that a temperature near 0 gives no +infinity, nor 0 / 0.
    below = logits - logits.max(axis=-1, keepdims=True)
    logits = below / jnp.maximum(temperature, jnp.finfo(jnp.float32).tiny)
    logits = restrict(logits, top_k, top_p) if restricted else logits
    return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)
