"""Which query may attend to which key, as rules that need no array of T by S."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def visible(
    query_positions: Int[Array, "t"],
    key_positions: Int[Array, "s"],
    *,
    causal: bool,
    window: int = 0,
) -> Bool[Array, "t s"]:
    """True where the query may attend: no later key if causal, none `window` or more away. Three
    causal positions with a window of 2 give (1, 0, 0), (1, 1, 0), (0, 1, 1)."""
    distances = query_positions[:, None] - key_positions[None, :]
    allowed = distances >= 0 if causal else jnp.ones(distances.shape, bool)
    return allowed & (jnp.abs(distances) < window) if window else allowed


def recent(
    query_positions: Int[Array, "t"],
    key_positions: Int[Array, "s"],
    starts: Int[Array, "b"],
    segment: int,
    memory: int,
) -> Bool[Array, "b t s"]:
    """True for keys of the query's own segment and `memory` positions before it; segments are
    counted from each text's start. Segments of 2 and a memory of 1 give the last of four positions
    0, 1, 1, 1."""
    first = starts[:, None]
    begin = first + (query_positions - first) // segment * segment - memory
    return key_positions >= begin[..., None]


def recallable(
    query_positions: Int[Array, "t"],
    key_positions: Int[Array, "s"],
    starts: Int[Array, "b"],
    segment: int,
    memory: int,
    length: int,
) -> Bool[Array, "b t s"]:
    """True for the `length` keys of a text before those that are `recent` for a query. Segments of
    2, a memory of 1 and a length of 1 give the last of six positions 0, 0, 1, 0, 0, 0."""
    near = recent(query_positions, key_positions, starts, segment, memory)
    far = recent(query_positions, key_positions, starts, segment, memory + length)
    return far & ~near & (key_positions >= starts[:, None])[:, None]


QUERY_FIELDS = ("query_segments",)
KEY_FIELDS = ("key_segments", "keys", "prefix")


@partial(
    jax.tree_util.register_dataclass,
    data_fields=[*QUERY_FIELDS, *KEY_FIELDS, "mask", "recalled"],
    meta_fields=["causal", "window"],
)
@dataclass(frozen=True)
class Visible:
    """A query may attend to a key where everything that is set here allows it.

    The arrays are typed `Any` because JAX also builds this class around things that are no arrays.
    """

    causal: bool = False  # no key that comes later, but for those of the prefix
    window: int = 0  # no key so many positions away or more; 0: no limit
    query_segments: Any = None  # int [B, T]; with key_segments: only keys of the same number ...
    key_segments: Any = None  # int [B, S]; ... of which 0 is padding, attended by nobody
    keys: Any = None  # bool [B, S]: keys that are real
    prefix: Any = None  # bool [B, S]: keys that causality and window do not hide
    mask: Any = None  # bool [#B, #N, #T, S]: anything else
    # bool [B, 1, T, S]: keys of which a layer with `recall` attends to the nearest, besides the
    # ones that all of the above allow
    recalled: Any = None

    def only_order(self, queries: int, keys: int) -> bool:
        """Whether causality, with or without a window, is the only rule, or there is none."""
        arrays = (self.query_segments, self.keys, self.prefix, self.mask)
        square = queries == keys or not self.causal
        return all(x is None for x in arrays) and square and (self.causal or not self.window)

    def dense(
        self, query_positions: Int[Array, "t"], key_positions: Int[Array, "s"]
    ) -> Bool[Array, "#b #n t s"] | None:
        """The mask as an array, True where a query may attend; None where all may attend to all."""
        t, s = len(query_positions), len(key_positions)
        allowed = None
        if self.causal or self.window:
            allowed = visible(
                query_positions, key_positions, causal=self.causal, window=self.window
            )[None, None]
            if self.prefix is not None:
                allowed = allowed | self.prefix[:, None, None, :]
        parts = [allowed, self.mask]
        if self.query_segments is not None:
            equal = self.query_segments[:, :, None] == self.key_segments[:, None, :]
            parts.append((equal & (self.key_segments != 0)[:, None, :])[:, None])
        if self.keys is not None:
            parts.append(self.keys[:, None, None, :])
        parts = [part for part in parts if part is not None]
        if not parts:
            return None
        whole = parts[0]
        for part in parts[1:]:
            whole = whole & part
        return jnp.broadcast_to(whole, (*whole.shape[:2], t, s))

    def block(
        self, query: tuple[Int[Array, ""], int], key: tuple[Int[Array, ""], int]
    ) -> "Visible":
        """The rules between a block of queries and one of keys, each given as (start, length)."""
        cut = lambda x, at, axis: jax.lax.dynamic_slice_in_dim(x, *at, axis=axis)  # noqa: E731
        mask = self.mask
        if mask is not None:
            mask = cut(mask, query, 2) if mask.shape[2] > 1 else mask
            mask = cut(mask, key, 3)
        parts = {f: (getattr(self, f), query) for f in QUERY_FIELDS}
        parts |= {f: (getattr(self, f), key) for f in KEY_FIELDS}
        blocks = {f: x if x is None else cut(x, at, 1) for f, (x, at) in parts.items()}
        return replace(self, mask=mask, **blocks)

    def padded(self, queries: int, keys: int, key_length: int, rows: int) -> "Visible":
        """The rules with so many queries and keys more; nobody attends to the new keys."""

        def pad(x, more, axis):
            if x is None or not more:
                return x
            room = [(0, 0)] * x.ndim
            room[axis] = (0, more)
            return jnp.pad(x, room)

        real = self.keys
        if keys and real is None:
            real = jnp.ones((rows, key_length), bool)
        mask = self.mask
        if mask is not None:
            mask = pad(pad(mask, queries if mask.shape[2] > 1 else 0, 2), keys, 3)
        return replace(
            self,
            mask=mask,
            query_segments=pad(self.query_segments, queries, 1),
            key_segments=pad(self.key_segments, keys, 1),
            keys=pad(real, keys, 1),
            prefix=pad(self.prefix, keys, 1),
        )


ALL = Visible()
