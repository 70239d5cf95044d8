"""Scaled dot-product attention (Vaswani 2017, section 3.2) on head-major arrays.

Letters: B batch, T query length, S key length, N query heads, K key/value heads, H head dim.
Arrays are [B, N, T, H]: each head's matrix is contiguous, which is 1.1 times as fast on a CPU and
lets a decoding cache be read without a transpose.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_lab.ops.dropout import dropout
from transformer_lab.ops.visibility import Visible


def attend(
    query: Float[Array, "b n t h"],
    key: Float[Array, "b k s h"],
    value: Float[Array, "b k s h"],
    mask: Bool[Array, "#b #n #t s"] | None = None,
    *,
    scale: float | None = None,
    bias: Float[Array, "#b #n #t s"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Key[Array, ""] | None = None,
) -> tuple[Float[Array, "b n t h"], Float[Array, "b n t s"]]:
    """Scaled dot-product attention: softmax(q k^T * scale + bias) v, and the softmax's weights.

    The mask is True where a query may attend; a query that may attend to nothing gets zeros. The
    scale is 1 / sqrt(H) unless given. Scores and softmax are float32 whatever the inputs are. With
    fewer key heads than query heads (K divides N) each key head serves N / K query heads.

    For example, two keys with scores 0 and ln 3 get the weights 1/4 and 3/4; with the second key
    masked out, they get 1 and 0.
    """
    b, n, t, h = query.shape
    k, s = key.shape[1], key.shape[2]
    scores = products(query, key, scale)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1)
    if mask is not None:
        # A masked weight is 0 already, except in a query without any key, where softmax is uniform.
        weights = jnp.where(mask, weights, 0.0)
    dropped = dropout(weights, dropout_rate, dropout_key).astype(value.dtype)
    out = jnp.einsum("bkts,bksh->bkth", dropped.reshape(b, k, n // k * t, s), value)
    return out.reshape(b, n, t, h), weights


def products(
    query: Float[Array, "b n t h"], key: Float[Array, "b k s h"], scale: float | None = None
) -> Float[Array, "b n t s"]:
    """The scores q k^T * scale of each query and key in float32, as `attend` takes them."""
    b, n, t, h = query.shape
    k, s = key.shape[1], key.shape[2]
    scale = h**-0.5 if scale is None else scale
    # Heads that share a key head are rows of one product: K matrices of (N / K * T) x S.
    grouped = (query * jnp.asarray(scale, query.dtype)).reshape(b, k, n // k * t, h)
    scores = jnp.einsum("bkth,bksh->bkts", grouped, key, preferred_element_type=jnp.float32)
    return scores.reshape(b, n, t, s)


def attend_nearest(
    query: Float[Array, "b n t h"],
    key: Float[Array, "b k s h"],
    value: Float[Array, "b k s h"],
    mask: Bool[Array, "#b #n #t s"],
    count: int,
    *,
    scale: float | None = None,
) -> Float[Array, "b n t h"]:
    """`attend` of each query to the `count` keys under the mask that have the largest scores with
    it (Wu 2022, section 3.2), found exactly: the scores of all keys are in memory. Of the scores
    1, 2 and 3 a count of 2 leaves the last two, with the weights 0.27 and 0.73."""
    scores = jax.lax.stop_gradient(jnp.where(mask, products(query, key, scale), -jnp.inf))
    least = jax.lax.top_k(scores, min(count, key.shape[2]))[0][..., -1:]
    return attend(query, key, value, mask & (scores >= least), scale=scale)[0]


def local_holds(query: Any, key: Any, seen: Visible) -> bool:
    """Whether `local_attend` can compute this: a window of at most half of the length, as many
    queries as keys, and no restriction by a prefix or a mask."""
    plain = query.shape[2] == key.shape[2] and seen.prefix is None and seen.mask is None
    return plain and 0 < 2 * seen.window <= query.shape[2]


def local_attend(
    query: Float[Array, "b n t h"],
    key: Float[Array, "b k t h"],
    value: Float[Array, "b k t h"],
    seen: Visible,
    *,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Key[Array, ""] | None = None,
) -> Float[Array, "b n t h"]:
    """`attend` within a window, at a cost of T times the window and not T squared.

    Queries go in blocks of a window each, beside the keys of their own block, the one before and,
    unless causal, the one after (Child 2019; Beltagy 2020, section 3.1).
    """
    b, _, t, _ = query.shape
    window, blocks = seen.window, -(-t // seen.window)
    sides = range(2 if seen.causal else 3)  # the block before, the own, the one after

    def split(x, axis):
        """Cuts an axis of length T into two, [blocks, window], after padding it to whole blocks."""
        room = [(0, 0)] * x.ndim
        room[axis] = (0, blocks * window - t)
        return jnp.pad(x, room).reshape(*x.shape[:axis], blocks, window, *x.shape[axis + 1 :])

    def around(x, axis):
        """Each block joined with its neighbouring blocks; zeros, or False, at the ends."""
        room = [(0, 0)] * (x.ndim + 1)
        room[axis] = (1, 1)
        padded = jnp.pad(split(x, axis), room)
        parts = [jax.lax.slice_in_dim(padded, i, i + blocks, axis=axis) for i in sides]
        return jnp.concatenate(parts, axis=axis + 1)

    def fold(x):
        """Makes each block an example of its own: [B, N, blocks, ...] -> [B * blocks, N, ...]."""
        return jnp.moveaxis(x, 2, 1).reshape(-1, x.shape[1], *x.shape[3:])

    real = jnp.ones((b, t), bool) if seen.keys is None else seen.keys
    inner = {"keys": around(real, 1)}
    if seen.query_segments is not None:
        inner["query_segments"] = split(seen.query_segments, 1)
        inner["key_segments"] = around(seen.key_segments, 1)
    inner = {name: x.reshape(b * blocks, -1) for name, x in inner.items()}
    # Inside of a block, its own keys begin at position `window`: the block before comes first.
    near = Visible(seen.causal, window, **inner)
    mask = near.dense(window + jnp.arange(window), jnp.arange(window * len(sides)))
    folded = [fold(split(query, 2)), fold(around(key, 2)), fold(around(value, 2)), mask]
    out, _ = attend(*folded, scale=scale, dropout_rate=dropout_rate, dropout_key=dropout_key)
    out = jnp.moveaxis(out.reshape(b, blocks, *out.shape[1:]), 1, 2)
    return out.reshape(b, out.shape[1], blocks * window, -1)[:, :, :t]


def fused_attend(
    query: Float[Array, "b n t h"],
    key: Float[Array, "b k s h"],
    value: Float[Array, "b k s h"],
    seen: Visible,
    *,
    scale: float | None = None,
    bias: Float[Array, "#b #n #t s"] | None = None,
    implementation: str = "xla",
) -> Float[Array, "b n t h"]:
    """Attention by `jax.nn.dot_product_attention`, with its "xla" or "cudnn" implementation. It
    takes what `attend` takes, except dropout, and returns no weights."""
    swap = lambda x: jnp.swapaxes(x, 1, 2)  # noqa: E731
    b, t, s = len(query), query.shape[2], key.shape[2]
    mask, options = None, {}
    if seen.only_order(t, s):  # the library knows these rules without an array
        options["is_causal"] = seen.causal
        if seen.window:
            options["local_window_size"] = (seen.window - 1, 0)
    else:
        mask = seen.dense(jnp.arange(t), jnp.arange(s))
    out = jax.nn.dot_product_attention(
        *map(swap, (query, key, value)),
        bias=None if bias is None else bias.astype(query.dtype),
        mask=None if mask is None else jnp.broadcast_to(mask, (b, mask.shape[1], t, s)),
        scale=scale,
        implementation=implementation,
        **options,
    )
    if mask is None:
        return swap(out)
    # For a query without any key the library returns the mean of the values: make it zeros.
    return jnp.where(mask.any(axis=-1, keepdims=True), swap(out), jnp.zeros((), out.dtype))
