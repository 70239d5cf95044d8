"""Attention from a recurrent decoder's states to the states of the source."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_lab.layers.basic import Dense
from transformer_lab.ops.attention import attend

KINDS = ("additive", "general", "dot", "scaled_dot", "plain")
QUERIES, KEYS = ("additive", "scaled_dot"), ("additive", "general", "scaled_dot")  # projected
Memory = dict[str, Array]


class Alignment(nn.Module):
    """Attention of decoder states to the source's states, with the score named by `kind`.

    additive: v tanh(W q + U k) (Bahdanau 2015, appendix A.1.2); general: q W k and dot: q k (Luong
    2015, section 3.1); scaled_dot: projected queries, keys and values, over the root of the width
    (Vaswani 2017, eq. 1); plain: the same without projections. Two steps, so that the source is
    projected once: `memory`, then a call for each query.
    """

    kind: str
    width: int  # width of the queries
    dtype: jnp.dtype

    def setup(self):
        layer = lambda bias: Dense(self.width, use_bias=bias, dtype=self.dtype)  # noqa: E731
        if self.kind in QUERIES:
            self.query = layer(False)
        if self.kind in KEYS:
            self.key = layer(self.kind == "additive")
        if self.kind == "scaled_dot":
            self.value = layer(False)
        if self.kind == "additive":
            self.score_scale = self.param(
                "score_scale", nn.initializers.normal(self.width**-0.5), (self.width,)
            )

    def memory(self, states: Float[Array, "b s d"], mask: Bool[Array, "b s"]) -> Memory:
        """The `keys`, `values` and `mask` of the source, computed once for all queries."""
        keys = self.key(states) if self.kind in KEYS else states
        values = self.value(states) if self.kind == "scaled_dot" else states
        return {"keys": keys, "values": values, "mask": mask}

    def __call__(
        self, query: Float[Array, "b t d"], memory: Memory
    ) -> tuple[Float[Array, "b t v"], Float[Array, "b t s"]]:
        """The context of each query, and its weights, which are zeros where the mask is False."""
        keys, values, mask = memory["keys"], memory["values"], memory["mask"][:, None]
        query = self.query(query) if self.kind in QUERIES else query
        if self.kind != "additive":
            scale = None if self.kind in ("scaled_dot", "plain") else 1.0
            one = lambda x: x[:, None].astype(self.dtype)  # noqa: E731 (one head)
            out, weights = attend(one(query), one(keys), one(values), mask[:, None], scale=scale)
            return out[:, 0], weights[:, 0]
        # score = v tanh(W q + U k) for all queries and keys at once: [B, T, S, D] in memory.
        hidden = jnp.tanh(query[:, :, None] + keys[:, None]).astype(jnp.float32)
        scores = jnp.where(mask, hidden @ self.score_scale, jnp.finfo(jnp.float32).min)
        weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0.0)
        return jnp.einsum("bts,bsd->btd", weights.astype(values.dtype), values), weights
