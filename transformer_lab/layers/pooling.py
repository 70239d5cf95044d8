"""Pooling by attention: one vector for a whole sequence of states."""

from dataclasses import replace

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_lab.layers.attention import Attention
from transformer_lab.layers.basic import FeedForward, norm
from transformer_lab.layers.config import StackConfig


class AttentionPool(nn.Module):
    """A learned query attends to all states, then a feed-forward with residual (Zhai 2022, 3.2)."""

    config: StackConfig

    def setup(self):
        cfg = replace(self.config, positions="none", window=0)
        init = nn.initializers.xavier_uniform()
        self.probe = self.param("probe", init, (1, cfg.width))
        self.attention = Attention(cfg)
        self.norm = norm(cfg)
        self.feed_forward = FeedForward(cfg)

    def __call__(self, states: Float[Array, "b t d"]) -> Float[Array, "b d"]:
        probe = jnp.broadcast_to(self.probe, (len(states), 1, self.config.width))
        key_value = self.attention.keys_and_values(states)
        x = self.attention(probe.astype(states.dtype), key_value)
        return (x + self.feed_forward(self.norm(x)))[:, 0]


class MeanQueryPool(nn.Module):
    """The mean attends to itself and all states, each with its position (Radford 2021, 2.4).

    The states may have another width than the config's, which is that of the output.
    """

    config: StackConfig

    @nn.compact
    def __call__(self, states: Float[Array, "b t c"]) -> Float[Array, "b d"]:
        x = jnp.concatenate([states.mean(axis=1, keepdims=True), states], axis=1)
        init = nn.initializers.normal(x.shape[2] ** -0.5)
        x = x + self.param("positions", init, x.shape[1:]).astype(x.dtype)
        attention = Attention(replace(self.config, positions="none", window=0), name="attention")
        return attention(x[:, :1], attention.keys_and_values(x))[:, 0]
