"""The block and the stack that every transformer family is made of."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.layers.attention import Attention, KeyValue
from transformer_lab.layers.basic import FeedForward, norm
from transformer_lab.layers.config import StackConfig
from transformer_lab.ops.dropout import dropout

Mask = Bool[Array, "b #n #t s"]
DropoutKey = Key[Array, ""]


class Block(nn.Module):
    """Self-attention, cross-attention if asked for, feed-forward; each with residual and norm.

    post: x = norm(x + f(x)) (Vaswani 2017, 3.1); pre: x = x + f(norm(x)) (Xiong 2020);
    parallel: x = x + attention(norm(x)) + feed_forward(norm(x)) (Chowdhery 2022, section 2).
    """

    config: StackConfig
    causal: bool = False
    cross: bool = False

    def setup(self):
        cfg = self.config
        self.attention = Attention(cfg, causal=self.causal)
        self.attention_norm = norm(cfg)
        if self.cross:
            self.cross_attention = Attention(cfg)
            self.cross_attention_norm = norm(cfg)
        self.feed_forward = FeedForward(cfg)
        if cfg.block == "serial":
            self.feed_forward_norm = norm(cfg)

    def __call__(
        self,
        x: Float[Array, "b t d"],
        mask: Mask | None = None,
        memory: Float[Array, "b s d"] | None = None,
        memory_mask: Mask | None = None,
        dropout_key: DropoutKey | None = None,
    ) -> Float[Array, "b t d"]:
        """All positions at once."""
        keys = (None,) * 6 if dropout_key is None else jax.random.split(dropout_key, 6)
        self_attention = lambda h: self.attention(h, None, mask, keys[0])  # noqa: E731
        cross = None
        if self.cross:
            key_value = self.cross_attention.keys_and_values(memory)
            cross = lambda h: self.cross_attention(h, key_value, memory_mask, keys[1])  # noqa: E731
        return self._compose(x, self_attention, cross, keys[2:])

    def step(
        self,
        x: Float[Array, "b t d"],
        cache: KeyValue,
        index: Int[Array, ""],
        cross_cache: KeyValue | None = None,
        memory_mask: Mask | None = None,
    ) -> tuple[Float[Array, "b t d"], KeyValue]:
        """The t new positions that stand at index, over a cache."""
        written = []

        def self_attention(h):
            out, new = self.attention.step(h, cache, index)
            written.append(new)
            return out

        cross = None
        if self.cross:
            cross = lambda h: self.cross_attention(h, cross_cache, memory_mask)  # noqa: E731
        x = self._compose(x, self_attention, cross, (None,) * 4)
        return x, written[0]

    def _compose(self, x, self_attention, cross_attention, keys):
        cfg = self.config
        drop = lambda h, key: dropout(h, cfg.dropout, key)  # noqa: E731
        feed_forward = lambda h: self.feed_forward(h, keys[3])  # noqa: E731
        if cfg.block == "parallel":
            h = self.attention_norm(x)
            x = x + drop(self_attention(h), keys[0]) + drop(feed_forward(h), keys[2])
            return (
                x
                if cross_attention is None
                else self._residual(x, cross_attention, self.cross_attention_norm, keys[1])
            )
        x = self._residual(x, self_attention, self.attention_norm, keys[0])
        if cross_attention is not None:
            x = self._residual(x, cross_attention, self.cross_attention_norm, keys[1])
        return self._residual(x, feed_forward, self.feed_forward_norm, keys[2])

    def _residual(self, x, sublayer, norm_layer, key):
        if self.config.norm_place == "pre":
            return x + dropout(sublayer(norm_layer(x)), self.config.dropout, key)
        return norm_layer(x + dropout(sublayer(x), self.config.dropout, key))


class Stack(nn.Module):
    """Blocks named layer_0, layer_1, ..., and a final norm where the norm stands first.

    Parameters always lie unrolled, one subtree a layer: with `scan_layers` they are stacked inside
    the computation, so initial values, paths and checkpoints are the same with it and without.
    """

    config: StackConfig
    layers: int
    causal: bool = False
    cross: bool = False

    def setup(self):
        block = nn.remat(Block) if self.config.remat else Block
        self.layer = [block(self.config, self.causal, self.cross) for _ in range(self.layers)]
        if self.config.norm_place == "pre":
            self.final_norm = norm(self.config)

    def __call__(
        self,
        x: Float[Array, "b t d"],
        mask: Mask | None = None,
        memory: Float[Array, "b s d"] | None = None,
        memory_mask: Mask | None = None,
        dropout_key: DropoutKey | None = None,
    ) -> Float[Array, "b t d"]:
        """Masks are over keys, True = may attend; no dropout without a key."""
        capturing = self.is_mutable_collection("intermediates")
        if self.config.scan_layers and not self.is_initializing() and not capturing:
            x = self._scan(x, mask, memory, memory_mask, dropout_key)
        else:
            for i, layer in enumerate(self.layer):
                key = None if dropout_key is None else jax.random.fold_in(dropout_key, i)
                x = layer(x, mask, memory, memory_mask, key)
        return self._finish(x)

    def _scan(self, x, mask, memory, memory_mask, dropout_key):
        params = self.variables["params"]
        layers = [params[f"layer_{i}"] for i in range(self.layers)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
        block = Block(self.config, self.causal, self.cross, parent=None)

        def body(x, layer):
            variables, i = layer
            key = None if dropout_key is None else jax.random.fold_in(dropout_key, i)
            return block.apply({"params": variables}, x, mask, memory, memory_mask, key), None

        body = jax.checkpoint(body, prevent_cse=False) if self.config.remat else body
        return jax.lax.scan(body, x, (stacked, jnp.arange(self.layers)))[0]

    def init_cache(self, batch: int, length: int) -> dict[str, KeyValue]:
        """Empty keys and values for `length` positions."""
        cfg = self.config
        shape = (batch, cfg.key_value_heads, length, cfg.head_dim)
        empty = jnp.zeros(shape, cfg.compute_dtype)
        return {f"layer_{i}": (empty, empty) for i in range(self.layers)}

    def cross_cache(self, memory: Float[Array, "b s d"]) -> dict[str, KeyValue]:
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
        memory_mask: Mask | None = None,
    ) -> tuple[Float[Array, "b t d"], dict[str, KeyValue]]:
        """The t new positions that stand at index; returns their states and the new cache."""
        new_cache = {}
        for i, layer in enumerate(self.layer):
            name = f"layer_{i}"
            cross = None if cross_cache is None else cross_cache[name]
            x, new_cache[name] = layer.step(x, cache[name], index, cross, memory_mask)
        return self._finish(x), new_cache

    def _finish(self, x):
        return self.final_norm(x) if self.config.norm_place == "pre" else x
