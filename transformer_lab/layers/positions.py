"""Where a token stands: vectors added to the tokens', and biases added to attention's scores."""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_lab.layers.config import ADDED, StackConfig
from transformer_lab.ops.positions import alibi_slopes, binary_code, sinusoids, t5_buckets


class Places(NamedTuple):
    """Where queries and keys stand, as indices in the sequence. More than one query needs keys
    (and queries) that stand side by side."""

    query: Int[Array, "t"]
    key: Int[Array, "s"]


class PositionVectors(nn.Module):
    """The vectors of the additive kinds; a learned table is `embedding` [max_length, width]."""

    config: StackConfig

    @nn.compact
    def __call__(self, positions: Int[Array, "*b t"]) -> Float[Array, "*b t d"] | None:
        """None for a kind that adds nothing."""
        cfg = self.config
        if cfg.positions not in ADDED:
            return None
        if cfg.positions == "learned":
            init = nn.initializers.normal(cfg.init_std)
            table = self.param("embedding", init, (cfg.max_length, cfg.width))
            vectors = jnp.take(table, positions, axis=0)
        elif cfg.positions == "binary":
            vectors = binary_code(positions, cfg.width)
        elif cfg.positions in ("index", "index_scaled"):
            # Two classic mistakes: a number without bound, and one with a step that lengths change.
            last = max(cfg.max_length - 1, 1) if cfg.positions == "index_scaled" else 1
            scalar = positions[..., None].astype(jnp.float32) / last
            vectors = jnp.broadcast_to(scalar, (*positions.shape, cfg.width))
        else:
            halves = cfg.positions == "sinusoidal_halves"
            vectors = sinusoids(positions, cfg.width, halves=halves)
        return vectors.astype(cfg.compute_dtype)


class ScoreBias(nn.Module):
    """What ALiBi (Press 2021) or T5's buckets (Raffel 2020) add to the scores of all layers.

    T5's table is `embedding` [buckets, heads], shared by the layers of a stack.
    """

    config: StackConfig
    causal: bool

    @nn.compact
    def __call__(self, places: Places) -> Float[Array, "1 n t s"] | None:
        """None for a kind that adds nothing."""
        cfg = self.config
        if cfg.positions not in ("alibi", "t5"):
            return None
        distances = places.key[None, :] - places.query[:, None]
        if cfg.positions == "alibi":
            slopes = alibi_slopes(cfg.heads)[:, None, None]
            return (-jnp.abs(distances) * slopes)[None]
        init = nn.initializers.normal(cfg.init_std)
        table = self.param("embedding", init, (cfg.relative_buckets, cfg.heads))
        buckets = t5_buckets(
            distances,
            bidirectional=not self.causal,
            buckets=cfg.relative_buckets,
            max_distance=cfg.relative_max_distance,
        )
        return jnp.moveaxis(jnp.take(table, buckets, axis=0), -1, 0)[None]
