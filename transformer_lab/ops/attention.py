"""Scaled dot-product attention (Vaswani 2017, section 3.2) on head-major arrays.

Letters: B batch, T query length, S key length, N query heads, K key/value heads, H head dim.
Arrays are [B, N, T, H]: each head's matrix is contiguous, which is 1.1 times as fast on a CPU and
lets a decoding cache be read without a transpose.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from transformer_lab.errors import LabError
from transformer_lab.ops.dropout import dropout
from transformer_lab.ops.visibility import visible

IMPLEMENTATIONS = ("own", "xla", "cudnn")


def causal_mask(
    query_length: int, key_length: int, offset: int | Int[Array, ""] = 0
) -> Bool[Array, "t s"]:
    """True where query t, standing at position offset + t, may attend to key s <= offset + t."""
    return visible(offset + jnp.arange(query_length), jnp.arange(key_length), causal=True)


def same_segment(
    segments: Int[Array, "b t"], keys: Int[Array, "b s"] | None = None
) -> Bool[Array, "b 1 t s"]:
    """True between tokens of one segment; segment 0 is padding, attended by nobody."""
    keys = segments if keys is None else keys
    equal = segments[:, :, None] == keys[:, None, :]
    return (equal & (keys != 0)[:, None, :])[:, None]


def attend(
    query: Float[Array, "b n t h"],
    key: Float[Array, "b k s h"],
    value: Float[Array, "b k s h"],
    mask: Bool[Array, "#b #n #t s"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    bias: Float[Array, "#b #n #t s"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Key[Array, ""] | None = None,
) -> tuple[Float[Array, "b n t h"], Float[Array, "b n t s"]]:
    """softmax(q k^T * scale + bias) v, and the weights; grouped queries when N is a multiple of K.

    The mask is True where a query may attend; a query that may attend to nothing gets zeros. The
    scale is 1 / sqrt(H) unless given. Scores and softmax are float32 whatever the inputs are.
    """
    b, n, t, h = query.shape
    k, s = key.shape[1], key.shape[2]
    scale = h**-0.5 if scale is None else scale
    grouped = (query * jnp.asarray(scale, query.dtype)).reshape(b, k, n // k * t, h)
    scores = jnp.einsum("bkth,bksh->bkts", grouped, key, preferred_element_type=jnp.float32)
    scores = scores.reshape(b, n, t, s)
    if bias is not None:
        scores = scores + bias
    if causal:
        below = causal_mask(t, s)
        mask = below if mask is None else mask & below
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1)
    if mask is not None:
        # A masked weight is 0 already, but for rows without any key: there softmax is uniform.
        weights = jnp.where(mask, weights, 0.0)
    dropped = dropout(weights, dropout_rate, dropout_key).astype(value.dtype)
    out = jnp.einsum("bkts,bksh->bkth", dropped.reshape(b, k, n // k * t, s), value)
    return out.reshape(b, n, t, h), weights


def local_attend(
    query: Float[Array, "b n t h"],
    key: Float[Array, "b k t h"],
    value: Float[Array, "b k t h"],
    mask: Bool[Array, "#b #n #t t"] | None = None,
    *,
    window: int,
    causal: bool = False,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Key[Array, ""] | None = None,
) -> Float[Array, "b n t h"]:
    """`attend` to the keys nearer than `window`, at a cost of T times the window and not T squared.

    Queries go in blocks of a window each, beside the keys of their own block, the one before and,
    unless causal, the one after (Child 2019; Beltagy 2020, section 3.1).
    """
    b, _, t, _ = query.shape
    blocks = -(-t // window)
    sides = range(2 if causal else 3)  # the block before, the own, the one after

    def split(x, axis):
        """Whole blocks: the axis becomes two."""
        room = [(0, 0)] * x.ndim
        room[axis] = (0, blocks * window - t)
        return jnp.pad(x, room).reshape(*x.shape[:axis], blocks, window, *x.shape[axis + 1 :])

    def around(x, axis):
        """A block's keys with those of its neighbours; zeros, or False, where there is none."""
        room = [(0, 0)] * (x.ndim + 1)
        room[axis] = (1, 1)
        padded = jnp.pad(split(x, axis), room)
        parts = [jax.lax.slice_in_dim(padded, i, i + blocks, axis=axis) for i in sides]
        return jnp.concatenate(parts, axis=axis + 1)

    def fold(x):
        """[B, N, blocks, ...] -> [B * blocks, N, ...]."""
        return jnp.moveaxis(x, 2, 1).reshape(-1, x.shape[1], *x.shape[3:])

    places = window + jnp.arange(window), jnp.arange(window * len(sides))
    near = visible(*places, causal=causal, window=window)
    real = around(jnp.ones((1, 1, t), bool), 2)[:, :, :, None]
    allowed = jnp.broadcast_to(near & real, (b, 1, blocks, *near.shape))
    if mask is not None:
        keys = around(mask, 3)  # [b, n, 1 or t, blocks, keys]
        if mask.shape[2] == 1:
            allowed = allowed & keys[:, :, 0, :, None]
        else:
            own = jnp.arange(blocks)
            allowed = allowed & jnp.moveaxis(split(keys, 2)[:, :, own, :, own], 0, 2)
    folded = [fold(split(query, 2)), fold(around(key, 2)), fold(around(value, 2)), fold(allowed)]
    out, _ = attend(*folded, scale=scale, dropout_rate=dropout_rate, dropout_key=dropout_key)
    out = jnp.moveaxis(out.reshape(b, blocks, *out.shape[1:]), 1, 2)
    return out.reshape(b, out.shape[1], blocks * window, -1)[:, :, :t]


def fused_attend(
    query: Float[Array, "b n t h"],
    key: Float[Array, "b k s h"],
    value: Float[Array, "b k s h"],
    mask: Bool[Array, "#b #n #t s"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    bias: Float[Array, "#b #n #t s"] | None = None,
    implementation: str = "xla",
) -> Float[Array, "b n t h"]:
    """The same through `jax.nn.dot_product_attention`: no weights and no dropout."""
    if implementation == "cudnn" and jax.default_backend() != "gpu":
        raise LabError(
            'model.attention_implementation = "cudnn" needs an NVIDIA GPU; "own" and "xla" run '
            "anywhere"
        )
    swap = lambda x: jnp.swapaxes(x, 1, 2)  # noqa: E731
    b, _, t, _ = query.shape
    s = key.shape[2]
    full = mask if mask is None else jnp.broadcast_to(mask, (b, mask.shape[1], t, s))
    out = jax.nn.dot_product_attention(
        swap(query),
        swap(key),
        swap(value),
        bias=None if bias is None else bias.astype(query.dtype),
        mask=full,
        is_causal=causal,
        scale=scale,
        implementation=implementation,
    )
    return _zero_empty_rows(swap(out), mask, causal)


def _zero_empty_rows(
    out: Shaped[Array, "b n t h"], mask: Bool[Array, "#b #n #t s"] | None, causal: bool
) -> Shaped[Array, "b n t h"]:
    """`jax.nn.dot_product_attention` returns the mean of the values for a row without any key."""
    if mask is None:
        return out
    if causal:
        mask = mask & causal_mask(out.shape[2], mask.shape[-1])
    return jnp.where(mask.any(axis=-1, keepdims=True), out, jnp.zeros((), out.dtype))
