"""The stack of blocks that every transformer family is made of."""

from dataclasses import replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_lab.layers.attention import KeyValue, segment_places, to_ring
from transformer_lab.layers.basic import norm
from transformer_lab.layers.block import Block, Cache, DropoutKey
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.mixing import Flow
from transformer_lab.layers.positions import Places, ScoreBias
from transformer_lab.layers.scanned import make_layers, run_layers
from transformer_lab.ops.visibility import ALL, Visible, recallable, recent, visible


class Stack(nn.Module):
    """Blocks named layer_0, layer_1, ..., and a final norm if each block begins with its norm and
    does not end in one.

    `layers.scanned` runs them, unrolled or as one.
    """

    config: StackConfig
    layers: int
    causal: bool = False
    cross: bool = False
    conditioned: bool = False

    def setup(self):
        settings = [self.config.layer(i) for i in range(self.layers)]
        kind = self.causal, self.cross, self.conditioned
        make_layers(self, [partial(Block, cfg, *kind) for cfg in settings])
        self.score_bias = ScoreBias(self.config, self.causal)
        if self._ends_in_norm:
            self.final_norm = norm(self.config.last(self.layers), not self.conditioned)

    @property
    def _ends_in_norm(self) -> bool:
        cfg = self.config
        return cfg.norm_place == "pre" and cfg.final_norm and cfg.block != "conformer"

    def __call__(
        self,
        x: Float[Array, "b t d"],
        seen: Visible = ALL,
        memory: Float[Array, "b m d"] | None = None,
        memory_seen: Visible = ALL,
        dropout_key: DropoutKey | None = None,
        prefix: Bool[Array, "b t"] | None = None,
        added: Float[Array, "#b t d"] | None = None,
        condition: Float[Array, "b d"] | None = None,
    ) -> Float[Array, "b t d"]:
        """The states after all layers; a call without a key uses no dropout.

        A query attends to what is `seen` and, in a causal stack, to no later key except those of
        the prefix. `added` are position vectors, added before each layer. A conditioned stack's
        blocks are scaled and shifted by the `condition`.
        """
        places = self._places(x.shape[1])
        seen = self._ordered(seen, prefix)
        bias = self.score_bias(segment_places(self.config) if self.config.segment else places)

        def each(i):
            key = None if dropout_key is None else jax.random.fold_in(dropout_key, i)
            rate = self._drop_rate(i)
            return seen, memory, memory_seen, key, places, bias, added, rate, condition

        return self._finish(run_layers(self, x, each))

    def _drop_rate(self, layer):
        return self.config.drop_path * layer / max(self.layers - 1, 1)

    def _places(self, length: int, index: int | Int[Array, ""] = 0) -> Places:
        positions = index + jnp.arange(length)
        return Places(positions, positions)

    def _ordered(self, seen, prefix):
        return replace(seen, causal=self.causal, prefix=prefix)

    def init_cache(self, batch: int, length: int) -> dict[str, Cache]:
        """An empty cache with room for `length` positions, or a layer's window if that is shorter.
        A mixer's cache is its first state, whose size is constant."""
        cfg = self.config
        nothing = jnp.zeros((batch, 1, cfg.width), cfg.compute_dtype)
        flow = Flow(jnp.zeros((batch, 1), bool), None, jnp.zeros((1,), jnp.int32))
        cache = {}
        for name, layer in self._named():
            if layer.mixes:
                # A position of padding leaves the state unchanged: it returns the initial one.
                state = layer.mixer(nothing, flow)[1]
            else:
                size = self._cache_length(layer, length)
                empty = jnp.zeros((batch, cfg.key_value_heads, size, cfg.head_dim), nothing.dtype)
                state = empty, empty
            if layer.config.feed_forward == "shifted":
                state = {"mixer": state, "feed_forward": nothing[:, 0]}
            cache[name] = state
        return cache

    def _named(self):
        return [(f"layer_{i}", layer) for i, layer in enumerate(self.layer)]

    def _cache_length(self, layer: Block, length: int) -> int:
        return min(length, layer.config.window) if layer.config.window else length

    def _map_keys(self, layer, function, cache):
        """A layer's cache with a function applied to keys and values, but not to states."""
        if layer.mixes:
            return cache
        if layer.config.feed_forward == "shifted":
            return cache | {"mixer": jax.tree.map(function, cache["mixer"])}
        return jax.tree.map(function, cache)

    def cross_cache(self, memory: Float[Array, "b m d"]) -> dict[str, KeyValue]:
        """The memory's keys and values in each layer, computed once for all steps."""
        return {
            f"layer_{i}": layer.cross_attention.keys_and_values(memory)
            for i, layer in enumerate(self.layer)
        }

    def step(
        self,
        x: Float[Array, "b t d"],
        cache: dict[str, Cache],
        index: Int[Array, ""],
        cross_cache: dict[str, KeyValue] | None = None,
        memory_seen: Visible = ALL,
        start: Int[Array, "b"] | None = None,
        added: Float[Array, "#b t d"] | None = None,
    ) -> tuple[Float[Array, "b t d"], dict[str, Cache]]:
        """Runs t new positions, the first at `index`; returns their states and the new cache.

        `start` is each text's first real position: those before it are padding.
        """
        t, new_cache = x.shape[1], {}
        flow = Flow.of(ALL, index + jnp.arange(t), start)
        first = jnp.zeros((1,), jnp.int32) if start is None else start
        seeing: dict[int, Any] = {}  # masks and places by window, which layers share
        for name, layer in self._named():
            window = layer.config.window
            if not layer.mixes and window not in seeing:
                size = _keys_of(cache[name])[0].shape[2]
                places = cached_places(t, size, index, window)
                mask = visible(*places, causal=True, window=window)[None, None]
                mask = mask & self._recent(places, first)
                mask = mask & (places.key >= first[:, None])[:, None, None, :]
                seen = Visible(mask=mask, recalled=self._recalled(places, first))
                seeing[window] = seen, places, self.score_bias(places)
            seen, places, bias = (ALL, None, None) if layer.mixes else seeing[window]
            cross = None if cross_cache is None else cross_cache[name]
            x, new_cache[name] = layer.step(
                x, cache[name], index, seen, places, bias, added, cross, memory_seen, flow
            )
        return self._finish(x), new_cache

    def prefill(
        self,
        x: Float[Array, "b t d"],
        seen: Visible,
        prefix: Bool[Array, "b t"] | None,
        length: int,
        added: Float[Array, "#b t d"] | None = None,
    ) -> tuple[Float[Array, "b t d"], dict[str, Cache]]:
        """The first t positions at once: their states, and a cache with room for `length`."""
        t, cache = x.shape[1], {}
        places = self._places(t)
        seen, bias = self._ordered(seen, prefix), self.score_bias(places)
        flow = Flow.of(seen, places.query)
        if self.config.segment:
            first = jnp.zeros((1,), jnp.int32)
            if seen.key_segments is not None:
                first = (seen.key_segments == 0).sum(axis=1)  # padding stands on the left
            far = self._recalled(places, first)
            seen = replace(seen, mask=self._recent(places, first), recalled=far)
        zero = jnp.zeros((), jnp.int32)
        for name, layer in self._named():
            seen = replace(seen, window=layer.config.window)
            x, new = layer.step(x, None, zero, seen, places, bias, added, flow=flow)
            size = self._cache_length(layer, length)
            room = ((0, 0), (0, 0), (0, max(size - t, 0)), (0, 0))
            fit = lambda h: jnp.pad(h, room) if t <= size else to_ring(h, size, t)  # noqa: E731, B023
            cache[name] = self._map_keys(layer, fit, new)
        return self._finish(x), cache

    def _recent(self, places, starts):
        """The mask [B, 1, T, S] of what the recurrence by segments lets a query see."""
        cfg = self.config
        if not cfg.segment:
            return True
        return recent(*places, starts, cfg.segment, cfg.memory)[:, None]

    def _recalled(self, places, starts):
        """The mask [B, 1, T, S] of the keys of which a query recalls the nearest, in one layer."""
        cfg = self.config
        if not cfg.recall:
            return None
        return recallable(*places, starts, cfg.segment, cfg.memory, cfg.recall_length)[:, None]

    def _finish(self, x):
        return self.final_norm(x) if self._ends_in_norm else x


def _keys_of(cache: Cache) -> KeyValue:
    """The keys and values in a layer's cache, without the feed-forward's state."""
    return cache["mixer"] if isinstance(cache, dict) else cache


def cached_places(t: int, size: int, index: Int[Array, ""], window: int) -> Places:
    """The positions of t new queries at index, and of the keys in a cache of `size`. With a window
    the cache is a ring; positions are negative where it is still empty."""
    if not window:
        return Places(index + jnp.arange(t), jnp.arange(size))
    if t == 1:
        keys = index - (index - jnp.arange(size)) % size
    else:
        keys = index - size + jnp.arange(size + t)
    return Places(index + jnp.arange(t), keys)
