"""Attention over texts whose positions are split over devices (Liu 2023, ring attention).

Each device keeps its queries; keys and values go round. No device holds all keys, and none a square
of T by S. For causal attention the positions are cut into 2 n parts, and device i holds parts i and
2 n - 1 - i: with parts in order the first device would have next to nothing to do, and the last one
all of it.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from transformer_lab.ops import chunked
from transformer_lab.ops.layout import current_mesh, split_of
from transformer_lab.ops.visibility import ALL, KEY_FIELDS, QUERY_FIELDS, Visible

AXIS = "sequence"


class Plan(NamedTuple):
    """What compilation knows of a ring: the devices, its steps, and how positions lie on them."""

    devices: int
    steps: int  # how many devices' keys each one sees
    dealt: bool  # each device holds an early and a late part; else one run of positions
    sizes: tuple[int, int]  # the sizes of blocks of queries and of keys


def ring_holds(query: Any, key: Any, seen: Visible) -> bool:
    """Whether `ring_attend` can compute this: a mesh splits positions evenly; there is no mask."""
    mesh = current_mesh()
    devices = 1 if mesh is None else mesh.shape.get(AXIS, 1)
    lengths = query.shape[2], key.shape[2]
    return devices > 1 and seen.mask is None and all(x % (2 * devices) == 0 for x in lengths)


def ring_attend(
    query: Float[Array, "b n t h"],
    key: Float[Array, "b k s h"],
    value: Float[Array, "b k s h"],
    seen: Visible = ALL,
    *,
    scale: float | None = None,
    block: int = 512,
) -> Float[Array, "b n t h"]:
    """`attend` without its weights, on a mesh whose `sequence` axis splits T and S evenly."""
    mesh = current_mesh()
    devices = mesh.shape[AXIS]
    t, s, h = query.shape[2] // devices, key.shape[2] // devices, query.shape[3]
    query = query * jnp.asarray(h**-0.5 if scale is None else scale, query.dtype)
    steps = devices
    # With a causal window the keys of few devices are near enough to be seen.
    if seen.causal and seen.window and seen.prefix is None:
        steps = min(devices, 1 + -(-(seen.window - 1) // s))
    dealt = seen.causal and steps == devices and t == s
    sizes = tuple(_divisor(x // (2 if dealt else 1), block) for x in (t, s))
    plan = Plan(devices, steps, dealt, sizes)
    heads = split_of(("rows", "heads", "length", None), key.shape, mesh)
    arrays = {f: getattr(seen, f) for f in (*QUERY_FIELDS, *KEY_FIELDS)}
    arrays = {f: x for f, x in arrays.items() if x is not None}

    def run(query, key, value, arrays):
        if dealt:
            query, key, value = (_deal(x, 2, devices) for x in (query, key, value))
            arrays = {f: _deal(x, 1, devices) for f, x in arrays.items()}
        b, n, t, h = query.shape
        k = key.shape[1]
        query = query.reshape(b, k, n // k, t, h)
        out = _ring(plan, query, key, value, replace(seen, **arrays)).reshape(b, n, t, h)
        return _undeal(out, 2, devices) if dealt else out

    specs = heads, heads, heads, {f: P(heads[0], heads[2]) for f in arrays}
    run = jax.shard_map(run, in_specs=specs, out_specs=heads, check_vma=False)
    return run(query, key, value, arrays)


def _divisor(length: int, most: int) -> int:
    return next(size for size in range(min(length, most), 0, -1) if length % size == 0)


def _owners(devices, half):
    """The (from, to) devices of each first (half = 0) or second (1) half when parts are dealt."""
    parts = range(half, 2 * devices, 2)
    return [(i, min(part, 2 * devices - 1 - part)) for i, part in enumerate(parts)]


def _deal(x, axis, devices):
    """Exchanges a device's two consecutive parts for the early and the late part it works on."""
    halves = jnp.split(x, 2, axis=axis)
    even, odd = (jax.lax.ppermute(halves[i], AXIS, _owners(devices, i)) for i in (0, 1))
    first = jax.lax.axis_index(AXIS) % 2 == 0  # part i is the early one, 2 n - 1 - i the late one
    pair = jnp.where(first, even, odd), jnp.where(first, odd, even)
    return jnp.concatenate(pair, axis=axis)


def _undeal(x, axis, devices):
    early, late = jnp.split(x, 2, axis=axis)
    first = jax.lax.axis_index(AXIS) % 2 == 0
    pair = jnp.where(first, early, late), jnp.where(first, late, early)
    back = [[(to, source) for source, to in _owners(devices, i)] for i in (0, 1)]
    return jnp.concatenate(
        [jax.lax.ppermute(x, AXIS, way) for x, way in zip(pair, back, strict=True)], axis=axis
    )


def _places(plan, device, length):
    """The positions of the text, int [length], that a device holds."""
    if not plan.dealt:
        return device * length + jnp.arange(length)
    half, inner = length // 2, jnp.arange(length // 2)
    late = 2 * plan.devices - 1 - device
    return jnp.concatenate([device * half + inner, late * half + inner])


def _around(plan, seen, query_length, key_length, work, carry, moving):
    """Calls work(carry, moving, ...) for each device's keys in turn; `moving` goes round the ring.
    Returns the last carry, and `moving` back on the devices where it began."""
    devices, me = plan.devices, jax.lax.axis_index(AXIS)
    own = _places(plan, me, query_length)
    keys = {f: x for f in KEY_FIELDS if (x := getattr(seen, f)) is not None}

    def shift(x, by):
        way = [(i, (i + by) % devices) for i in range(devices)]
        return jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, AXIS, way), x)

    def step(turn, state):
        carry, moving, keys = state
        places = own, _places(plan, (me - turn) % devices, key_length)
        here = replace(seen, **keys)
        blocks = chunked.seen_blocks(here, *places, *plan.sizes)
        order = jnp.argsort(~blocks.ravel())  # pairs with a visible key come first
        pairs = jnp.stack(jnp.divmod(order, blocks.shape[1]), axis=1).astype(jnp.int32)
        carry, moving = work(carry, moving, here, places, pairs, blocks.sum())
        return carry, shift(moving, 1), shift(keys, 1)

    carry, moving, _ = chunked.repeat(plan.steps, step, (carry, moving, keys))
    return carry, shift(moving, -plan.steps) if plan.steps < devices else moving


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _ring(plan, query, key, value, seen):
    return _forward(plan, query, key, value, seen)[0]


def _forward(plan, query, key, value, seen):
    def work(carry, moving, *rest):
        return chunked.fold(plan.sizes, carry, query, *moving, *rest), moving

    lengths = query.shape[3], key.shape[2]
    carry, _ = _around(plan, seen, *lengths, work, chunked.start(query), (key, value))
    out, statistic = chunked.finish(carry, query.dtype)
    return out, (query, key, value, seen, out, statistic)


def _backward(plan, kept, gradient):
    query, key, value, seen, out, statistic = kept
    inner = chunked.row_products(gradient, out)

    def work(to_query, moving, *rest):
        key, value, *sums = moving
        known = query, key, value, gradient, statistic, inner
        to_query, *sums = chunked.unfold(plan.sizes, (to_query, *sums), *known, *rest)
        return to_query, (key, value, *sums)

    zeros = [jnp.zeros(x.shape, jnp.float32) for x in (query, key, value)]
    lengths = query.shape[3], key.shape[2]
    moving = key, value, *zeros[1:]
    to_query, moving = _around(plan, seen, *lengths, work, zeros[0], moving)
    gradients = to_query, *moving[2:]
    cast = [g.astype(x.dtype) for g, x in zip(gradients, (query, key, value), strict=True)]
    return (*cast, None)


_ring.defvjp(_forward, _backward)
