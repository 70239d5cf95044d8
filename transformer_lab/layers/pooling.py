"""One vector for a sequence by attention."""

from dataclasses import replace

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_lab.layers.attention import Attention
from transformer_lab.layers.basic import FeedForward, norm
from transformer_lab.layers.config import StackConfig


class AttentionPool(nn.Module):
    """A learned query attends to all states, then a feed-forward with a residual (Zhai 2022,
    section 3.2)."""

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
