"""Draws the codes of pictures: one after the other, or many at once (MaskGIT, Chang 2022).

Letters: b pictures, n codes of a picture, k kinds of codes.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

Logits = Float[Array, "b k"]
Step = Callable[[Int[Array, "b"], Any], tuple[Logits, Any]]
Choose = Callable[[Float[Array, "m k"], Key[Array, "m"]], Int[Array, "m"]]


def in_order(
    logits: Logits, cache: Any, step: Step, choose: Choose, keys: Key[Array, "b"], count: int
) -> Int[Array, "b n"]:
    """`count` codes of each picture; `logits` are those of the first, and step(codes, cache) gives
    those of the next. `choose` draws codes by a key for each."""

    def body(carry, i):
        logits, cache = carry
        codes = choose(logits, jax.vmap(jax.random.fold_in, (0, None))(keys, i))
        return step(codes, cache), codes

    return jax.lax.scan(body, (logits, cache), jnp.arange(count))[1].T


def masked_share(progress: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """The share of codes that are hidden: 1 at the progress 0, 0 at 1 (Chang 2022, section 3.3)."""
    return jnp.cos(jnp.pi / 2 * progress)


def lowest(values: Float[Array, "b n"], counts: Int[Array, "#b"]) -> Bool[Array, "b n"]:
    """Which values are among so many lowest ones of their row; of equals the first are."""
    ranks = jnp.argsort(jnp.argsort(values, axis=1), axis=1)
    return ranks < counts[:, None]


def in_parallel(
    predict: Callable[[Int[Array, "b n"]], Float[Array, "b n k"]],
    choose: Choose,
    keys: Key[Array, "b"],
    count: int,
    steps: int,
    mask_id: int,
    noise: float = 0.0,
) -> Int[Array, "b n"]:
    """`count` codes of each picture in so many steps (Chang 2022, section 3.2).

    Each step draws all hidden codes, of which the least probable are hidden again; `noise` times
    Gumbel's noise, which fades to the last step, is added to their log-probabilities. predict gives
    logits of all codes, where those hidden are `mask_id`.
    """

    def body(codes, i):
        here = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
        each = jax.vmap(lambda key: jax.random.split(key, count + 1))(here)
        logits, hidden = predict(codes), codes == mask_id
        flat = logits.reshape(-1, logits.shape[-1])
        drawn = choose(flat, each[:, 1:].reshape(-1)).reshape(codes.shape)
        codes = jnp.where(hidden, drawn, codes)
        chances = jax.nn.log_softmax(logits)
        sure = jnp.take_along_axis(chances, codes[..., None], axis=-1)[..., 0]
        progress = (i + 1) / steps
        gumbel = jax.vmap(lambda key: jax.random.gumbel(key, (count,)))(each[:, 0])
        sure = jnp.where(hidden, sure + noise * (1 - progress) * gumbel, jnp.inf)
        again = jnp.floor(count * masked_share(progress)).astype(jnp.int32)
        again = jnp.where(i + 1 == steps, 0, again)
        return jnp.where(lowest(sure, again[None]) & hidden, mask_id, codes), None

    start = jnp.full((len(keys), count), mask_id, jnp.int32)
    return jax.lax.scan(body, start, jnp.arange(steps))[0]
