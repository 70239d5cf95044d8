"""Attention by the TPU's own kernel, `jax.experimental.pallas.ops.tpu.splash_attention`."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from transformer_lab.ops.layout import current_mesh, split_of
from transformer_lab.ops.visibility import ALL, Visible


def _library():
    """The library, imported where it is used: that takes 0.3 s, and most runs do without it."""
    from jax.experimental.pallas.ops.tpu import splash_attention

    return splash_attention


LANES = 128  # numbers that a TPU's registers hold side by side: block sizes are multiples of it
NOWHERE = -1  # the segment of a key that nobody attends to


def splash_holds(query: Any, key: Any, seen: Visible) -> bool:
    """Whether the kernel can compute this: it knows no prefix and no mask array, and causality or a
    window only where there are as many keys as queries."""
    square = query.shape[2] == key.shape[2] or not (seen.causal or seen.window)
    return seen.prefix is None and seen.mask is None and square


def splash_attend(
    query: Float[Array, "b n t h"],
    key: Float[Array, "b k s h"],
    value: Float[Array, "b k s h"],
    seen: Visible = ALL,
    *,
    scale: float | None = None,
    interpret: bool = False,
) -> Float[Array, "b n t h"]:
    """`attend` without its weights, by the TPU's kernel; each device has its examples and heads.

    Lengths are padded to whole blocks. `interpret` runs the kernel's program on any device, slowly,
    for tests.
    """
    b, n, t, h = query.shape
    s = key.shape[2]
    query = query * jnp.asarray(h**-0.5 if scale is None else scale, query.dtype)
    sizes = block_size(t), block_size(s)
    more = -t % sizes[0], -s % sizes[1]
    pad = lambda x, size: jnp.pad(x, ((0, 0), (0, 0), (0, size), (0, 0)))  # noqa: E731
    inputs = [pad(query, more[0]), pad(key, more[1]), pad(value, more[1])]
    hidden = seen.query_segments is not None or seen.keys is not None
    ids = _segments(b, (t, s), seen, more) if hidden or more[1] else ()

    def run(query, key, value, *ids):
        shape = query.shape[1:3], key.shape[2]
        kernel = _kernel(*shape, sizes, seen.causal, seen.window, interpret)
        segments = _library().SegmentIds(*ids) if ids else None
        return jax.vmap(kernel)(query, key, value, segments)

    if (mesh := current_mesh()) is not None:
        heads = split_of(("rows", "heads", None, None), key.shape, mesh)
        specs = (heads,) * 3 + (P(heads[0]),) * len(ids)
        run = jax.shard_map(run, in_specs=specs, out_specs=heads, check_vma=False)
    out = run(*inputs, *ids)[:, :, :t]
    if not hidden:
        return out
    # For a query without any key the kernel gives the mean of the values: make it zeros.
    found = seen.dense(jnp.arange(t), jnp.arange(s)).any(axis=-1)
    return jnp.where(found[..., None], out, jnp.zeros((), out.dtype))


def block_size(length: int) -> int:
    """The multiple of 128 up to 512 that needs the least padding; the largest of equals."""
    return min(range(4 * LANES, 0, -LANES), key=lambda size: -length % size)


def _segments(rows, lengths, seen, more):
    """Segment ids of queries and keys, which attend to each other where they are equal."""
    t, s = lengths
    query, key = seen.query_segments, seen.key_segments
    query = jnp.ones((rows, t), jnp.int32) if query is None else query
    key = jnp.ones((rows, s), jnp.int32) if key is None else jnp.where(key == 0, NOWHERE, key)
    key = key if seen.keys is None else jnp.where(seen.keys, key, NOWHERE)
    fill = lambda x, size: jnp.pad(x, ((0, 0), (0, size)), constant_values=NOWHERE)  # noqa: E731
    return fill(query, more[0]), fill(key, more[1])


@lru_cache(maxsize=64)
def _kernel(
    queries: tuple[int, int],
    keys: int,
    sizes: tuple[int, int],
    causal: bool,
    window: int,
    interpret: bool,
) -> Any:
    """The kernel compiled for (heads, queries) and for `keys` keys; the last 64 are kept."""
    splash = _library()
    heads, length = queries
    back = window - 1 if window else None
    mask = splash.FullMask((length, keys))
    if causal or window:
        mask = splash.LocalMask((length, keys), (back, 0 if causal else back), 0)
    rows, columns = sizes
    blocks = splash.BlockSizes(
        block_q=rows,
        block_kv=columns,
        block_q_dkv=rows,
        block_kv_dkv=columns,
        block_kv_dkv_compute=columns,
        block_q_dq=rows,
        block_kv_dq=columns,
    )
    with jax.ensure_compile_time_eval():  # its tables of blocks are constants
        return splash.make_splash_mha_single_device(
            splash.MultiHeadMask([mask] * heads), block_sizes=blocks, interpret=interpret
        )
