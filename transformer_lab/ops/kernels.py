"""Chooses the program that computes attention, by device and shapes; all give the same results."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer_lab.errors import LabError
from transformer_lab.ops.attention import attend, fused_attend, local_attend, local_holds
from transformer_lab.ops.chunked import chunked_attend
from transformer_lab.ops.layout import current_mesh
from transformer_lab.ops.ring import ring_attend, ring_holds
from transformer_lab.ops.splash import splash_attend, splash_holds
from transformer_lab.ops.visibility import Visible

IMPLEMENTATIONS = ("auto", "own", "chunked", "splash", "cudnn", "xla")
PLAIN = ("own", "local", "xla")  # these take dropout of weights or a bias, where others do not
WHOLE = 1024  # the fewest keys for which attention goes by blocks: faster, without scores [T, S]
SHORTEST = 512  # the fewest queries and keys for which the TPU's kernel is taken
_CHOSEN: ContextVar[set[str] | None] = ContextVar("chosen", default=None)
NEEDS = {"splash": ("tpu", "a TPU"), "cudnn": ("gpu", "an NVIDIA GPU")}


@contextmanager
def chosen() -> Iterator[set[str]]:
    """Collects in a set the names and lengths of the attention programs chosen while it is open."""
    token = _CHOSEN.set(names := set())
    try:
        yield names
    finally:
        _CHOSEN.reset(token)


def platform() -> str:
    """The kind of device compiled for, "tpu", "gpu" or "cpu": that of the mesh in use, which need
    not be on this machine, else this machine's."""
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    return getattr(device, "platform", None) or jax.default_backend()


def cudnn_holds(query: Any, key: Any, seen: Visible) -> bool:
    """Whether cuDNN can compute this without much memory.

    It takes half precision and heads of up to 128 numbers. Any restriction but causality with its
    window needs an array of T by S, the same for all heads.
    """
    low = query.dtype in (jnp.bfloat16, jnp.float16)
    t, s, h = query.shape[2], *key.shape[2:]
    even = t % 2 == 0 and s % 2 == 0
    small = seen.only_order(t, s) or (t * s <= (4 * WHOLE) ** 2 and even)
    return low and h <= 128 and h % 8 == 0 and small


def choose(
    asked: str, query: Any, key: Any, seen: Visible, biased: bool = False, drops: bool = False
) -> str:
    """The name of the program to use: one of IMPLEMENTATIONS except "auto", or "local" or "ring".

    Only the shapes and types of query and key matter. `biased`: something is added to the scores;
    `drops`: weights are dropped. Raises: LabError if a kernel is asked for without its device.
    """
    if biased or drops:
        return asked if asked in PLAIN and not drops else "own"
    if query.shape[2] == 1:  # a decoding step: its scores are small
        return asked if asked in PLAIN else "own"
    if ring_holds(query, key, seen):
        return "ring"
    where, (t, s) = platform(), (query.shape[2], key.shape[2])
    if asked == "own":
        return "local" if local_holds(query, key, seen) else "own"
    if asked != "auto":
        device, words = NEEDS.get(asked, (where, ""))
        if device != where:
            raise LabError(
                f'model.attention_implementation = "{asked}" needs {words}; "auto" takes it where '
                'there is one, "own", "chunked" and "xla" run anywhere'
            )
        return asked
    if where == "tpu" and min(t, s) >= SHORTEST and splash_holds(query, key, seen):
        return "splash"
    if where == "gpu" and cudnn_holds(query, key, seen):
        return "cudnn"
    if local_holds(query, key, seen) and 2 * seen.window < WHOLE:
        return "local"
    return "chunked" if s >= WHOLE else "own"


def attention(
    query: Float[Array, "b n t h"],
    key: Float[Array, "b k s h"],
    value: Float[Array, "b k s h"],
    seen: Visible,
    *,
    implementation: str = "auto",
    scale: float | None = None,
    bias: Float[Array, "#b #n #t s"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Key[Array, ""] | None = None,
) -> Float[Array, "b n t h"]:
    """`attend` without its weights [T, S], computed by the program that `choose` names."""
    inputs, drops = (query, key, value), bool(dropout_rate) and dropout_key is not None
    name = choose(implementation, query, key, seen, bias is not None, drops)
    if (names := _CHOSEN.get()) is not None:
        names.add(f"{name} ({query.shape[2]:,} x {key.shape[2]:,})")
    if name in ("splash", "ring", "cudnn"):
        inputs = (query, *_spread(query, key, value))
    if name in ("chunked", "splash", "ring"):
        run = {"chunked": chunked_attend, "splash": splash_attend, "ring": ring_attend}[name]
        return run(*inputs, seen, scale=scale)
    if name in ("xla", "cudnn"):
        return fused_attend(*inputs, seen, scale=scale, bias=bias, implementation=name)
    dropout = {"dropout_rate": dropout_rate, "dropout_key": dropout_key}
    if name == "local":
        return local_attend(*inputs, seen, scale=scale, **dropout)
    mask = seen.dense(jnp.arange(query.shape[2]), jnp.arange(key.shape[2]))
    return attend(*inputs, mask, scale=scale, bias=bias, **dropout)[0]


def _spread(query, key, value):
    """Keys and values, with heads repeated as far as the tensor axis needs to split them."""
    mesh, heads, own = current_mesh(), query.shape[1], key.shape[1]
    parts = 1 if mesh is None else mesh.shape.get("tensor", 1)
    more = parts // math.gcd(own, parts)
    if heads % (own * more):
        return key, value
    return tuple(jnp.repeat(x, more, axis=1) if more > 1 else x for x in (key, value))
