"""Multi-head attention over a sequence, a memory or a cache."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.layers.basic import dense
from transformer_lab.layers.config import StackConfig
from transformer_lab.ops.attention import attend, causal_mask, fused_attend

KeyValue = tuple[Float[Array, "_ k _ h"], Float[Array, "_ k _ h"]]  # keys, values: [B, K, S, H]


class Attention(nn.Module):
    """Concat(head_1 .. head_N) W_out (Vaswani 2017, section 3.2.2), heads grouped when K < N.

    Kernels are query [D, N*H], key and value [D, K*H], out [N*H, D].
    """

    config: StackConfig
    causal: bool = False

    def setup(self):
        cfg = self.config
        self.query = dense(cfg, cfg.heads * cfg.head_dim, cfg.attention_bias)
        self.key = dense(cfg, cfg.key_value_heads * cfg.head_dim, cfg.attention_bias)
        self.value = dense(cfg, cfg.key_value_heads * cfg.head_dim, cfg.attention_bias)
        self.out = dense(cfg, cfg.width, cfg.attention_bias)

    def keys_and_values(self, x: Float[Array, "b s d"]) -> KeyValue:
        """The projections that a cache holds, head-major."""
        heads = self.config.key_value_heads
        return self._split(self.key(x), heads), self._split(self.value(x), heads)

    def __call__(
        self,
        x: Float[Array, "b t d"],
        key_value: KeyValue | None = None,
        mask: Bool[Array, "b #n #t s"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
    ) -> Float[Array, "b t d"]:
        """Attends from x to the given keys and values, else to x itself."""
        query = self._split(self.query(x), self.config.heads)
        key_value = self.keys_and_values(x) if key_value is None else key_value
        return self._mix(query, key_value, mask, self.causal, dropout_key)

    def step(
        self, x: Float[Array, "b t d"], cache: KeyValue, index: Int[Array, ""]
    ) -> tuple[Float[Array, "b t d"], KeyValue]:
        """Causal attention of t new positions that stand at index, over all the cache holds then.

        The caller keeps index + t within the cache's length: a write beyond it would be moved.
        """
        query = self._split(self.query(x), self.config.heads)
        start = (0, 0, index, 0)
        cache = jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice(old, new.astype(old.dtype), start),
            cache,
            self.keys_and_values(x),
        )
        mask = causal_mask(x.shape[1], cache[0].shape[2], index)[None, None]
        return self._mix(query, cache, mask, False, None), cache

    def _mix(self, query, key_value, mask, causal, dropout_key):
        cfg = self.config
        scale = None if cfg.scale_attention else 1.0
        capture = self.is_mutable_collection("intermediates")
        if cfg.attention_implementation == "own" or capture:
            out, weights = attend(
                query,
                *key_value,
                mask,
                causal=causal,
                scale=scale,
                dropout_rate=cfg.attention_dropout,
                dropout_key=dropout_key,
            )
            self.sow("intermediates", "weights", weights)
        else:
            out = fused_attend(
                query,
                *key_value,
                mask,
                causal=causal,
                scale=scale,
                implementation=cfg.attention_implementation,
            )
        b, n, t, h = out.shape
        return self.out(jnp.swapaxes(out, 1, 2).reshape(b, t, n * h))

    def _split(self, x: Float[Array, "b t nh"], heads: int) -> Float[Array, "b n t h"]:
        b, t, _ = x.shape
        return jnp.swapaxes(x.reshape(b, t, heads, self.config.head_dim), 1, 2)
