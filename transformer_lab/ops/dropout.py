"""Dropout as a function of its key (Srivastava 2014)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

_STEPS = 1 << 16
_PATH = 0xD209  # folded into the key, so that drop_path and dropout draw different numbers from it


def dropout(
    x: Float[Array, "*shape"], rate: float, key: Key[Array, ""] | None
) -> Float[Array, "*shape"]:
    """Zeroes each element with probability `rate` and scales the rest up; without a key returns x.

    Each 32-bit random word decides two elements, so the rate is rounded to a multiple of 1/65536:
    half the cost of a word for each element, and an error below 8e-6, which the scale takes into
    account. The result depends on the key and the shape alone, not on how x is laid over devices.

    dropout(ones, 0.25, key) has about a quarter of zeros; its other elements are 1 / 0.75 = 1.333.
    """
    threshold = round(rate * _STEPS)
    if key is None or threshold == 0:
        return x
    if threshold >= _STEPS:
        return jnp.zeros_like(x)
    *front, last = x.shape
    words = jax.random.bits(key, (*front, (last + 1) // 2), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*front, -1)[..., :last]
    scale = _STEPS / (_STEPS - threshold)
    return jnp.where(halves >= threshold, x * jnp.asarray(scale, x.dtype), jnp.zeros((), x.dtype))


def drop_path(
    x: Float[Array, "b *shape"], rate: float | Float[Array, ""], key: Key[Array, ""] | None
) -> Float[Array, "b *shape"]:
    """Stochastic depth (Huang 2016): zeroes whole examples of x with probability `rate` and scales
    the rest up; without a key returns x."""
    if key is None:
        return x
    shape = (len(x), *(1,) * (x.ndim - 1))
    kept = jax.random.bernoulli(jax.random.fold_in(key, _PATH), 1.0 - rate, shape)
    return jnp.where(kept, x / jnp.asarray(1.0 - rate, x.dtype), jnp.zeros((), x.dtype))
