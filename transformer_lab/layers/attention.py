"""Multi-head attention from a sequence to itself, to a memory, or to a cache."""

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer_lab.errors import LabError
from transformer_lab.layers.basic import dense, joined
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.positions import Places
from transformer_lab.ops.attention import attend, attend_nearest
from transformer_lab.ops.kernels import attention
from transformer_lab.ops.layout import constrain
from transformer_lab.ops.positions import rope_frequencies, rotate, sinusoids
from transformer_lab.ops.segments import as_rows
from transformer_lab.ops.visibility import ALL, Visible, recallable, visible

KeyValue = tuple[Float[Array, "_ k _ h"], Float[Array, "_ k _ h"]]  # keys, values: [B, K, S, H]


class Attention(nn.Module):
    """Concat(head_1 .. head_N) W_out (Vaswani 2017, section 3.2.2), heads grouped when K < N.

    Kernels are query [D, N*H], key and value [D, K*H], out [N*H, D]. RoPE rotates queries and keys;
    transformer_xl adds position [D, N*H] and two bias vectors [N, H] (Dai 2019, section 3.3);
    `recall` adds a gate for each head, recall_gate [N].
    """

    config: StackConfig

    def setup(self):
        cfg = self.config
        bias, keys = cfg.attention_bias and cfg.qkv_bias, cfg.key_value_heads * cfg.head_dim
        self.query = dense(cfg, cfg.heads * cfg.head_dim, bias, "query")
        self.key = dense(cfg, keys, bias and cfg.key_bias, "key")
        self.value = dense(cfg, keys, bias, "value")
        self.out = dense(cfg, cfg.width, cfg.attention_bias, "out")
        if cfg.recall:
            self.recall_gate = self.param("recall_gate", nn.initializers.zeros, (cfg.heads,))
        if cfg.positions == "transformer_xl":
            shape = (cfg.heads, cfg.head_dim)
            self.position = dense(cfg, cfg.heads * cfg.head_dim, False)
            self.content_bias = self.param("content_bias", nn.initializers.zeros, shape)
            self.position_bias = self.param("position_bias", nn.initializers.zeros, shape)

    def keys_and_values(
        self,
        x: Float[Array, "b s d"],
        positions: Int[Array, "s"] | None = None,
        added: Float[Array, "#b s d"] | None = None,
    ) -> KeyValue:
        """The projections that a cache holds, [B, K, S, H]; keys are rotated by their positions,
        and made of x and what is `added` to it, which values leave out (Carion 2020, figure 10)."""
        heads = self.config.key_value_heads
        key = self._turn(self._split(self.key(x if added is None else x + added), heads), positions)
        return key, self._split(self.value(x), heads)

    def __call__(
        self,
        x: Float[Array, "b t d"],
        key_value: KeyValue | None = None,
        seen: Visible = ALL,
        dropout_key: Key[Array, ""] | None = None,
        places: Places | None = None,
        bias: Float[Array, "#b #n _ s"] | None = None,
    ) -> Float[Array, "b t o"]:
        """Attends from x to the given keys and values, or else to x itself. The output's width o is
        the config's, which may differ from the width of x."""
        if key_value is None and self.config.segment:
            return self._by_segments(x, seen, dropout_key, bias)
        if key_value is None:
            key_value = self.keys_and_values(x, places and places.query)
        query = self._queries(x, places)
        return self._join(self._mix(query, key_value, seen, dropout_key, places, bias))

    def step(
        self,
        x: Float[Array, "b t d"],
        cache: KeyValue | None,
        index: Int[Array, ""],
        seen: Visible,
        places: Places,
        bias: Float[Array, "#b #n #t s"] | None = None,
    ) -> tuple[Float[Array, "b t d"], KeyValue]:
        """Attention of t new positions, the first at `index`, over the cache and themselves.

        Without a cache they are the first ones, and their own keys and values are returned as
        cache. The caller keeps index + t within the cache's length (a write beyond it would be
        moved), unless the cache is as long as the window: then it is a ring, which holds position p
        at p modulo its length.
        """
        cfg = self.config
        if cache is None or x.shape[1] > 1:
            query, new = self._queries(x, places), self.keys_and_values(x, places.query)
        else:
            query, key, value = joined(x, (self.query, self.key, self.value))
            query = self._turn(self._split(query, cfg.heads), places.query)
            key = self._turn(self._split(key, cfg.key_value_heads), places.query)
            new = key, self._split(value, cfg.key_value_heads)
        if cache is None:
            held = kept = new
        elif cfg.window:
            held, kept = ring_write(cache, new, index)
        else:
            start = (0, 0, index, 0)
            write = lambda old, part: jax.lax.dynamic_update_slice(old, part, start)  # noqa: E731
            held = kept = jax.tree.map(write, cache, new)
        out = self._mix(query, held, replace(seen, recalled=None), None, places, bias)
        if cfg.recall:
            out = self._recall(out, query, held, seen.recalled)
        return self._join(out), kept

    def _by_segments(self, x, seen, dropout_key, bias):
        """Causal attention of each segment to itself and to the memory before it, all segments at
        once: they become rows of the batch. `bias` is of one segment (see `segment_places`)."""
        cfg, (b, t, _) = self.config, x.shape
        if seen.prefix is not None or seen.keys is not None:
            raise LabError("model.segment needs a causal model without a prefix or hidden tokens")
        size, memory, count = cfg.segment, cfg.memory, -(-t // cfg.segment)
        fill = lambda x, before, axis: jnp.pad(  # noqa: E731
            x, [(before, count * size - t) if i == axis else (0, 0) for i in range(x.ndim)]
        )
        positions, starts = jnp.arange(t), jnp.arange(count) * size
        numbers = jnp.ones((b, t), jnp.int32) if seen.key_segments is None else seen.key_segments
        query = self._queries(x, Places(positions, positions))
        own = (*self.keys_and_values(x, positions), numbers)
        old = (*self.keys_and_values(jax.lax.stop_gradient(x), positions), numbers)
        parts = []
        for old_part, own_part, axis in zip(old, own, (2, 2, 1), strict=True):
            # The number 0 marks what lies before the row or after it, which nobody sees.
            both = (fill(old_part, memory, axis), memory), (fill(own_part, 0, axis), size)
            parts.append([as_rows(x, starts, length, axis) for x, length in both])
        key, value, of_keys = (
            jnp.concatenate(part, axis) for part, axis in zip(parts, (2, 2, 1), strict=True)
        )
        places = segment_places(cfg)
        order = visible(*places, causal=True)[None, None]
        seen = Visible(query_segments=parts[2][1], key_segments=of_keys, mask=order)
        rows = as_rows(fill(query, 0, 2), starts, size, 2)
        out = self._mix(rows, (key, value), seen, dropout_key, places, bias)
        out = jnp.moveaxis(out.reshape(b, count, *out.shape[1:]), 1, 2)
        out = out.reshape(b, cfg.heads, count * size, -1)[:, :, :t]
        if cfg.recall:
            begin = jnp.zeros((1,), jnp.int32)
            far = recallable(positions, positions, begin, size, memory, cfg.recall_length)
            same = Visible(query_segments=numbers, key_segments=numbers)
            far = far[:, None] & same.dense(positions, positions)
            out = self._recall(out, query, old[:2], far)
        return self._join(out)

    def _recall(self, out, query, key_value, mask):
        """The heads' outputs mixed with attention to the nearest keys under the mask, through which
        no gradient flows. The share of the latter is the sigmoid of a head's gate (Wu 2022,
        equation 3), and 0 for queries without such keys."""
        cfg = self.config
        scale = cfg.head_dim**-0.5 if cfg.scale_attention else 1.0
        key_value = jax.lax.stop_gradient(key_value)
        found = attend_nearest(query, *key_value, mask, cfg.recall, scale=scale)
        gate = jax.nn.sigmoid(self.recall_gate)[:, None, None] * mask.any(axis=-1, keepdims=True)
        return out + gate.astype(out.dtype) * (found - out)

    def _queries(self, x, places):
        return self._turn(self._split(self.query(x), self.config.heads), places and places.query)

    def _turn(self, x, positions):
        cfg = self.config
        # Keys are rotated before they are cached, so that no step rotates them again.
        if cfg.positions != "rope" or positions is None:
            return x
        frequencies = rope_frequencies(
            cfg.turning_dims,
            cfg.rope_base,
            scaling=cfg.rope_scaling,
            factor=cfg.rope_factor,
            original_length=cfg.rope_original_length,
            low=cfg.rope_low,
            high=cfg.rope_high,
        )
        factor = cfg.rope_attention_factor
        return rotate(x, positions, frequencies, interleaved=cfg.rope_interleaved, magnitude=factor)

    def _relative(self, query, places, scale):
        """The query plus u, and Transformer-XL's position scores (q + v) r (Dai 2019, section 3.3).

        The score of a query q and a key k is (q + u) k, terms (a) and (c), plus (q + v) r, terms
        (b) and (d), where r is the projected sinusoid of their distance.
        """
        t, s = len(places.query), len(places.key)
        # Each distance is projected once, from the smallest (first query, last key) to the largest.
        first = places.query[0] - places.key[-1]
        distances = first + jnp.arange(t + s - 1) if t > 1 else places.query[0] - places.key
        vectors = sinusoids(distances, self.config.width, halves=True)
        keys = self._split(self.position(vectors[None]), self.config.heads)[0]
        shifted = query + self.position_bias[:, None].astype(query.dtype)
        scores = jnp.einsum("bnth,nlh->bntl", shifted, keys, preferred_element_type=jnp.float32)
        if t > 1:
            place = places.query[:, None] - places.key[None, :] - first
            scores = jnp.take_along_axis(scores, place[None, None], axis=-1)
        return query + self.content_bias[:, None].astype(query.dtype), scores * scale

    def _mix(self, query, key_value, seen, dropout_key, places=None, bias=None):
        cfg = self.config
        scale = cfg.head_dim**-0.5 if cfg.scale_attention else 1.0
        if cfg.positions == "transformer_xl" and places is not None:
            query, bias = self._relative(query, places, scale)
        options = {"scale": scale, "bias": bias, "dropout_key": dropout_key}
        options["dropout_rate"] = cfg.attention_dropout
        # The kernels return no weights, so captured weights are computed in the plain way.
        if self._captures():
            mask = seen.dense(jnp.arange(query.shape[2]), jnp.arange(key_value[0].shape[2]))
            out, weights = attend(query, *key_value, mask, **options)
            self.sow("intermediates", "weights", weights)
        else:
            kind = cfg.attention_implementation
            out = attention(query, *key_value, seen, implementation=kind, **options)
        return out

    def _captures(self):
        return self.is_mutable_collection("intermediates")

    def _join(self, out):
        b, n, t, h = out.shape
        return self.out(jnp.swapaxes(out, 1, 2).reshape(b, t, n * h))

    def _split(self, x: Float[Array, "b t nh"], heads: int) -> Float[Array, "b n t h"]:
        b, t, _ = x.shape
        x = jnp.swapaxes(x.reshape(b, t, heads, self.config.head_dim), 1, 2)
        return constrain(x, "rows", "heads", "length", None)


def segment_places(config: StackConfig) -> Places:
    """The positions of a segment's queries and of its keys, of which the first are the memory."""
    keys = jnp.arange(config.memory + config.segment)
    return Places(keys[config.memory :], keys)


def ring_write(cache: KeyValue, new: KeyValue, index: Int[Array, ""]) -> tuple[KeyValue, KeyValue]:
    """The keys and values that t new positions at index see, and the ring that is kept.

    A single position sees the ring after it is written. Several see the ring's positions in order,
    then their own, because a later one overwrites what an earlier one still sees.
    """
    size, t = cache[0].shape[2], new[0].shape[2]
    if t == 1:
        start = (0, 0, index % size, 0)
        write = lambda old, part: jax.lax.dynamic_update_slice(old, part, start)  # noqa: E731
        kept = jax.tree.map(write, cache, new)
        return kept, kept
    in_order = lambda old, part: jnp.concatenate(  # noqa: E731
        [jnp.roll(old, -(index % size), axis=2), part], axis=2
    )
    seen = jax.tree.map(in_order, cache, new)
    return seen, jax.tree.map(lambda x: to_ring(x, size, index + t), seen)


def to_ring(
    x: Float[Array, "b k s h"], size: int, end: int | Int[Array, ""]
) -> Float[Array, "b k r h"]:
    """The last `size` positions of x, up to `end` - 1, each at its position modulo `size`.
    Positions 2, 3, 4 in a ring of 3 are stored as 3, 4, 2."""
    return jnp.roll(x[:, :, x.shape[2] - size :], end % size, axis=2)
