"""Attention block by block, with no array of T by S (Dao 2022; Rabe 2021).

Inside, arrays are [B, K, G, T, H] for queries, G of them to a key's head, and [B, K, S, H] for keys
and values. A list of pairs (block of queries, block of keys) says what is computed: what causality
or a window hides as a whole never enters it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_lab.ops.visibility import ALL, Visible

NOTHING = -1e30  # the greatest score of a query that has seen no key yet
Carry = tuple[Float[Array, "b k g t h"], Float[Array, "b k g t"], Float[Array, "b k g t"]]
Pairs = Int[Array, "p 2"] | Int[np.ndarray, "p 2"]


def chunked_attend(
    query: Float[Array, "b n t h"],
    key: Float[Array, "b k s h"],
    value: Float[Array, "b k s h"],
    visible: Visible = ALL,
    *,
    scale: float | None = None,
    block: int = 512,
) -> Float[Array, "b n t h"]:
    """`attend` without its weights: memory grows with T + S, time with the number of pairs of
    blocks that the mask does not hide.

    Scores, softmax and sums are float32; a query that may attend to nothing gets zeros.
    """
    b, n, t, h = query.shape
    k, s = key.shape[1:3]
    rows, columns = min(block, t), min(block, s)
    more = -t % rows, -s % columns
    pad = lambda x, size: jnp.pad(x, ((0, 0), (0, 0), (0, size), (0, 0)))  # noqa: E731
    query = query * jnp.asarray(h**-0.5 if scale is None else scale, query.dtype)
    query = pad(query, more[0]).reshape(b, k, n // k, -1, h)
    key, value = pad(key, more[1]), pad(value, more[1])
    visible = visible.padded(*more, s, b)
    places = np.arange(t + more[0], dtype=np.int32), np.arange(s + more[1], dtype=np.int32)
    pairs = np.argwhere(seen_blocks(visible, *places, rows, columns)).astype(np.int32)
    out = _chunked((rows, columns), query, key, value, visible, places, pairs)
    return out.reshape(b, n, -1, h)[:, :, :t]


def seen_blocks(visible: Visible, query_places: Any, key_places: Any, rows: int, columns: int):
    """Bool [blocks of queries, blocks of keys]: False where causality or the window hides all."""
    query, key = query_places.reshape(-1, rows), key_places.reshape(-1, columns)
    first, last = query.min(axis=1)[:, None], query.max(axis=1)[:, None]
    first_key, last_key = key.min(axis=1)[None], key.max(axis=1)[None]
    seen = first_key <= (last if visible.causal else last_key + 0 * last)
    if visible.window:
        seen &= (first - last_key < visible.window) & (first_key - last < visible.window)
    return seen | (visible.prefix is not None)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(sizes, query, key, value, visible, places, pairs):
    return _forward(sizes, query, key, value, visible, places, pairs)[0]


def _forward(sizes, query, key, value, visible, places, pairs):
    carry = fold(sizes, start(query), query, key, value, visible, places, pairs)
    out, statistic = finish(carry, query.dtype)
    return out, (query, key, value, visible, places, pairs, out, statistic)


def _backward(sizes, kept, gradient):
    query, key, value, visible, places, pairs, out, statistic = kept
    carry = tuple(jnp.zeros(x.shape, jnp.float32) for x in (query, key, value))
    inner = row_products(gradient, out)
    more = gradient, statistic, inner, visible, places, pairs
    gradients = unfold(sizes, carry, query, key, value, *more)
    cast = [g.astype(x.dtype) for g, x in zip(gradients, (query, key, value), strict=True)]
    return (*cast, None, None, None)


_chunked.defvjp(_forward, _backward)


def repeat(count: Any, step: Callable[[Array, Any], Any], carry: Any) -> Any:
    """Runs carry = step(i, carry) for i = 0 .. count - 1, like `fori_loop`, but never as a scan.

    When a scan is recomputed in the backward pass, JAX evaluates what does not depend on the inputs
    for all turns beforehand, and would hold all blocks of the mask at once.
    """
    turn = lambda state: (state[0] + 1, step(*state))  # noqa: E731
    return jax.lax.while_loop(lambda state: state[0] < count, turn, (jnp.int32(0), carry))[1]


def start(query: Float[Array, "b k g t h"]) -> Carry:
    """The state of queries that have seen no key: weighted sums of values [B, K, G, T, H], the
    greatest scores so far and the sums of exponentials [B, K, G, T]."""
    flat = jnp.zeros(query.shape[:-1], jnp.float32)
    return jnp.zeros(query.shape, jnp.float32), flat + NOTHING, flat


def finish(carry: Carry, dtype: Any) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The outputs [B, K, G, T, H] in `dtype`, and the logsumexp of each query's scores."""
    sums, top, total = carry
    safe = jnp.where(total > 0, total, 1.0)
    return (sums / safe[..., None]).astype(dtype), top + jnp.log(safe)


def row_products(gradient: Float[Array, "*b t h"], out: Float[Array, "*b t h"]):
    """For each query the dot product of output and gradient, which softmax's gradient subtracts."""
    return (gradient.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1)


def _pair(sizes, pair, query, key, value, visible, places):
    """Where a pair of blocks begins, its queries, keys and values, and its scores: 2 * NOTHING
    where hidden, so that even before the first key they weigh exp(-1e30) = 0."""
    rows, columns = sizes
    i, j = pair[0] * rows, pair[1] * columns
    at = partial(jax.lax.dynamic_slice_in_dim, start_index=i, slice_size=rows)
    beside = partial(jax.lax.dynamic_slice_in_dim, start_index=j, slice_size=columns)
    q, k, v = at(query, axis=3), beside(key, axis=2), beside(value, axis=2)
    scores = jnp.einsum("bkgth,bksh->bkgts", q, k, preferred_element_type=jnp.float32)
    mask = visible.block((i, rows), (j, columns))
    mask = mask.dense(at(places[0], axis=0), beside(places[1], axis=0))
    if mask is not None:
        heads = query.shape[1:3] if mask.shape[1] > 1 else (1, 1)
        scores = jnp.where(mask.reshape(-1, *heads, rows, columns), scores, 2 * NOTHING)
    return i, j, (q, k, v), scores, at


def fold(
    sizes: tuple[int, int],
    carry: Carry,
    query: Float[Array, "b k g t h"],
    key: Float[Array, "b k s h"],
    value: Float[Array, "b k s h"],
    visible: Visible,
    places: tuple[Any, Any],
    pairs: Pairs,
    count: Any = None,
) -> Carry:
    """Adds to the state what queries find in these keys, at the first `count` pairs (None: all).

    The running softmax (Dao 2022, algorithm 1): with the new maximum m' = max(m, max scores), old
    sums are scaled by exp(m - m') before the block's exp(scores - m') are added.
    """
    pairs = jnp.asarray(pairs)
    places = tuple(map(jnp.asarray, places))

    def step(n, carry):
        i, _, (_, _, v), scores, at = _pair(sizes, pairs[n], query, key, value, visible, places)
        sums, top, total = (at(x, axis=3) for x in carry)
        new = jnp.maximum(top, scores.max(axis=-1))
        weights, kept = jnp.exp(scores - new[..., None]), jnp.exp(top - new)
        found = jnp.einsum(
            "bkgts,bksh->bkgth", weights.astype(v.dtype), v, preferred_element_type=jnp.float32
        )
        parts = sums * kept[..., None] + found, new, total * kept + weights.sum(axis=-1)
        put = lambda x, part: jax.lax.dynamic_update_slice_in_dim(x, part, i, 3)  # noqa: E731
        return tuple(map(put, carry, parts))

    return repeat(len(pairs) if count is None else count, step, carry)


def unfold(
    sizes: tuple[int, int],
    carry: tuple[Array, Array, Array],
    query: Float[Array, "b k g t h"],
    key: Float[Array, "b k s h"],
    value: Float[Array, "b k s h"],
    gradient: Float[Array, "b k g t h"],
    statistic: Float[Array, "b k g t"],
    inner: Float[Array, "b k g t"],
    visible: Visible,
    places: tuple[Any, Any],
    pairs: Pairs,
    count: Any = None,
) -> tuple[Array, Array, Array]:
    """Adds these pairs' part of the gradients of query, key and value (Dao 2022, algorithm 4).

    The weights are computed again as P = exp(scores - logsumexp). With dP = dO V^T and `inner`, the
    products of O and dO, the gradient of the scores is P * (dP - inner).
    """
    pairs = jnp.asarray(pairs)
    places = tuple(map(jnp.asarray, places))
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)

    def step(n, carry):
        i, j, (q, k, v), scores, at = _pair(sizes, pairs[n], query, key, value, visible, places)
        weights = jnp.exp(scores - at(statistic, axis=3)[..., None])
        above = at(gradient, axis=3).astype(v.dtype)
        slopes = product("bkgth,bksh->bkgts", above, v) - at(inner, axis=3)[..., None]
        slopes = (weights * slopes).astype(q.dtype)
        parts = (
            (product("bkgts,bksh->bkgth", slopes, k), i, 3),
            (product("bkgts,bkgth->bksh", slopes, q), j, 2),
            (product("bkgts,bkgth->bksh", weights.astype(v.dtype), above), j, 2),
        )

        def add(x, part, begin, axis):
            old = jax.lax.dynamic_slice_in_dim(x, begin, part.shape[axis], axis)
            return jax.lax.dynamic_update_slice_in_dim(x, old + part, begin, axis)

        return tuple(add(x, *part) for x, part in zip(carry, parts, strict=True))

    return repeat(len(pairs) if count is None else count, step, carry)
