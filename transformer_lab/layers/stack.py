"""The block and the stack that every transformer family is made of."""

from dataclasses import replace
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.layers.adapter import Adapter
from transformer_lab.layers.attention import Attention, KeyValue, to_ring
from transformer_lab.layers.basic import FeedForward, norm
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.positions import Places, ScoreBias
from transformer_lab.layers.scanned import make_layers, run_layers
from transformer_lab.ops.dropout import drop_path, dropout
from transformer_lab.ops.layout import constrain
from transformer_lab.ops.visibility import ALL, Visible, visible

Bias = Float[Array, "#b #n #t s"]
DropoutKey = Key[Array, ""]
STREAM = ("rows", "length", "width")


class Block(nn.Module):
    """Self-attention, cross-attention if asked for, feed-forward; each with residual and norm.

    post: x = norm(x + f(x)) (Vaswani 2017, 3.1); deep: x = norm(alpha x + f(x)) (Wang 2022);
    pre: x = x + f(norm(x)) (Xiong 2020); parallel: x = x + attention(norm(x)) +
    feed_forward(norm(x)) (Chowdhery 2022, section 2), with one norm or two. With `adapter_width`
    a bottleneck follows each f, before the residual is added (Houlsby 2019, figure 2).
    """

    config: StackConfig
    causal: bool = False
    cross: bool = False

    def setup(self):
        cfg = self.config
        self.attention = Attention(cfg)
        self.attention_norm = norm(cfg)
        if self.cross:
            self.cross_attention = Attention(replace(cfg, positions="none", window=0))
            self.cross_attention_norm = norm(cfg)
        self.feed_forward = FeedForward(cfg)
        if cfg.block != "parallel":
            self.feed_forward_norm = norm(cfg)
        if cfg.adapter_width:
            self.attention_adapter, self.feed_forward_adapter = Adapter(cfg), Adapter(cfg)
            if self.cross:
                self.cross_attention_adapter = Adapter(cfg)

    def __call__(
        self,
        x: Float[Array, "b t d"],
        seen: Visible = ALL,
        memory: Float[Array, "b m d"] | None = None,
        memory_seen: Visible = ALL,
        dropout_key: DropoutKey | None = None,
        places: Places | None = None,
        bias: Bias | None = None,
        added: Float[Array, "#b t d"] | None = None,
        drop_rate: float | Float[Array, ""] = 0.0,
    ) -> Float[Array, "b t d"]:
        """All positions at once; `added` are position vectors, `drop_rate` is that of drop path."""
        keys = (None,) * 6 if dropout_key is None else jax.random.split(dropout_key, 6)
        attention = lambda h: self.attention(h, None, seen, keys[0], places, bias)  # noqa: E731
        cross = None
        if self.cross:
            key_value = self.cross_attention.keys_and_values(memory)
            cross = lambda h: self.cross_attention(h, key_value, memory_seen, keys[1])  # noqa: E731
        x = constrain(x if added is None else x + added, *STREAM)
        return constrain(self._compose(x, attention, cross, keys[2:], drop_rate), *STREAM)

    def step(
        self,
        x: Float[Array, "b t d"],
        cache: KeyValue | None,
        index: Int[Array, ""],
        seen: Visible,
        places: Places,
        bias: Bias | None = None,
        added: Float[Array, "#b t d"] | None = None,
        cross_cache: KeyValue | None = None,
        memory_seen: Visible = ALL,
    ) -> tuple[Float[Array, "b t d"], KeyValue]:
        """The t new positions that stand at index, over a cache (None: the first positions)."""
        written = []

        def attention(h):
            out, new = self.attention.step(h, cache, index, seen, places, bias)
            written.append(new)
            return out

        cross = None
        if self.cross:
            cross = lambda h: self.cross_attention(h, cross_cache, memory_seen)  # noqa: E731
        x = self._compose(x if added is None else x + added, attention, cross, (None,) * 4)
        return x, written[0]

    def _compose(self, x, self_attention, cross_attention, keys, drop_rate=0.0):
        cfg = self.config
        feed_forward = lambda h: self.feed_forward(h, keys[3])  # noqa: E731
        if cfg.adapter_width:
            self_attention = _then(self_attention, self.attention_adapter)
            feed_forward = _then(feed_forward, self.feed_forward_adapter)
            if cross_attention is not None:
                cross_attention = _then(cross_attention, self.cross_attention_adapter)

        def dropped(sublayer, key):
            whole = _then(sublayer, lambda h: dropout(h, cfg.dropout, key))
            return _then(whole, lambda h: drop_path(h, drop_rate, key)) if cfg.drop_path else whole

        self_attention = dropped(self_attention, keys[0])
        feed_forward = dropped(feed_forward, keys[2])
        if cfg.block != "serial":
            h = self.attention_norm(x)
            g = h if cfg.block == "parallel" else self.feed_forward_norm(x)
            x = (x if cfg.residual else 0.0) + self_attention(h) + feed_forward(g)
        else:
            x = self._residual(x, self_attention, self.attention_norm)
        if cross_attention is not None:
            cross_attention = dropped(cross_attention, keys[1])
            x = self._residual(x, cross_attention, self.cross_attention_norm)
        if cfg.block != "serial":
            return x
        return self._residual(x, feed_forward, self.feed_forward_norm)

    def _residual(self, x, sublayer, norm_layer):
        cfg = self.config
        kept = x if cfg.residual else 0.0
        if cfg.norm_place == "pre":
            return kept + sublayer(norm_layer(x))
        scaled = kept * cfg.residual_scale if cfg.norm_place == "deep" else kept
        return norm_layer(scaled + sublayer(x))


def _then(sublayer, adapter):
    return lambda h: adapter(sublayer(h))


class Stack(nn.Module):
    """Blocks named layer_0, layer_1, ..., and a final norm where the norm stands first.

    `layers.scanned` runs them, unrolled or as one.
    """

    config: StackConfig
    layers: int
    causal: bool = False
    cross: bool = False

    def setup(self):
        block = partial(Block, self.config, self.causal, self.cross)
        make_layers(self, block, self.layers)
        self.score_bias = ScoreBias(self.config, self.causal)
        if self._ends_in_norm:
            self.final_norm = norm(self.config)

    @property
    def _ends_in_norm(self) -> bool:
        return self.config.norm_place == "pre" and self.config.final_norm

    def __call__(
        self,
        x: Float[Array, "b t d"],
        seen: Visible = ALL,
        memory: Float[Array, "b m d"] | None = None,
        memory_seen: Visible = ALL,
        dropout_key: DropoutKey | None = None,
        prefix: Bool[Array, "b t"] | None = None,
        added: Float[Array, "#b t d"] | None = None,
    ) -> Float[Array, "b t d"]:
        """No dropout without a key.

        A query attends to what is `seen` and, in a causal stack, to no later key but those of the
        prefix. `added` are position vectors, added before each layer.
        """
        places = self._places(x.shape[1])
        seen = self._ordered(seen, prefix)
        bias = self.score_bias(places)

        def each(i):
            key = None if dropout_key is None else jax.random.fold_in(dropout_key, i)
            return seen, memory, memory_seen, key, places, bias, added, self._drop_rate(i)

        return self._finish(run_layers(self, x, each))

    def _drop_rate(self, layer):
        return self.config.drop_path * layer / max(self.layers - 1, 1)

    def _places(self, length: int, index: int | Int[Array, ""] = 0) -> Places:
        positions = index + jnp.arange(length)
        return Places(positions, positions)

    def _ordered(self, seen, prefix):
        return replace(seen, causal=self.causal, window=self.config.window, prefix=prefix)

    def init_cache(self, batch: int, length: int) -> dict[str, KeyValue]:
        """Empty keys and values for `length` positions, of which a window keeps its own number."""
        cfg = self.config
        shape = (batch, cfg.key_value_heads, self._cache_length(length), cfg.head_dim)
        empty = jnp.zeros(shape, cfg.compute_dtype)
        return {f"layer_{i}": (empty, empty) for i in range(self.layers)}

    def _cache_length(self, length: int) -> int:
        return min(length, self.config.window) if self.config.window else length

    def cross_cache(self, memory: Float[Array, "b m d"]) -> dict[str, KeyValue]:
        """The memory's keys and values in each layer, computed once."""
        return {
            f"layer_{i}": layer.cross_attention.keys_and_values(memory)
            for i, layer in enumerate(self.layer)
        }

    def step(
        self,
        x: Float[Array, "b t d"],
        cache: dict[str, KeyValue],
        index: Int[Array, ""],
        cross_cache: dict[str, KeyValue] | None = None,
        memory_seen: Visible = ALL,
        start: Int[Array, "b"] | None = None,
        added: Float[Array, "#b t d"] | None = None,
    ) -> tuple[Float[Array, "b t d"], dict[str, KeyValue]]:
        """The t new positions that stand at index; returns their states and the new cache.

        `start` is each row's first real position: those before it are padding.
        """
        places = self._cached_places(x.shape[1], cache["layer_0"][0].shape[2], index)
        mask = visible(*places, causal=True, window=self.config.window)[None, None]
        first = jnp.zeros((1,), jnp.int32) if start is None else start
        seen = Visible(mask=mask & (places.key >= first[:, None])[:, None, None, :])
        bias, new_cache = self.score_bias(places), {}
        for i, layer in enumerate(self.layer):
            name = f"layer_{i}"
            cross = None if cross_cache is None else cross_cache[name]
            x, new_cache[name] = layer.step(
                x, cache[name], index, seen, places, bias, added, cross, memory_seen
            )
        return self._finish(x), new_cache

    def prefill(
        self,
        x: Float[Array, "b t d"],
        seen: Visible,
        prefix: Bool[Array, "b t"] | None,
        length: int,
        added: Float[Array, "#b t d"] | None = None,
    ) -> tuple[Float[Array, "b t d"], dict[str, KeyValue]]:
        """The first t positions at once; the cache has room for `length`."""
        t, size, cache = x.shape[1], self._cache_length(length), {}
        places = self._places(t)
        seen, bias = self._ordered(seen, prefix), self.score_bias(places)
        zero = jnp.zeros((), jnp.int32)
        for i, layer in enumerate(self.layer):
            x, new = layer.step(x, None, zero, seen, places, bias, added)
            room = ((0, 0), (0, 0), (0, max(size - t, 0)), (0, 0))
            fit = lambda h: jnp.pad(h, room) if t <= size else to_ring(h, size, t)  # noqa: E731, B023
            cache[f"layer_{i}"] = jax.tree.map(fit, new)
        return self._finish(x), cache

    def _cached_places(self, t: int, size: int, index: Int[Array, ""]) -> Places:
        """Negative where nothing stands yet."""
        if not self.config.window:
            return Places(index + jnp.arange(t), jnp.arange(size))
        if t == 1:
            keys = index - (index - jnp.arange(size)) % size
        else:
            keys = index - size + jnp.arange(size + t)
        return Places(index + jnp.arange(t), keys)

    def _finish(self, x):
        return self.final_norm(x) if self._ends_in_norm else x
