"""Positions of tokens: vectors added to the tokens' vectors, and biases on attention's scores."""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_lab.layers.config import ADDED, StackConfig
from transformer_lab.ops.positions import alibi_slopes, binary_code, sinusoids, t5_buckets


class Places(NamedTuple):
    """The positions of queries and keys, as indices in the sequence. If there is more than one
    query, both must be consecutive."""

    query: Int[Array, "t"]
    key: Int[Array, "s"]


class PositionVectors(nn.Module):
    """The vectors of the additive kinds; a learned table is `embedding` [max_length, width]."""

    config: StackConfig

    @nn.compact
    def __call__(self, positions: Int[Array, "*b t"]) -> Float[Array, "*b t d"] | None:
        """The position vectors in the compute type; None for kinds that add no vectors."""
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
            # Two classic mistakes: an unbounded number, and one whose step depends on the length.
            last = max(cfg.max_length - 1, 1) if cfg.positions == "index_scaled" else 1
            scalar = positions[..., None].astype(jnp.float32) / last
            vectors = jnp.broadcast_to(scalar, (*positions.shape, cfg.width))
        else:
            halves = cfg.positions == "sinusoidal_halves"
            vectors = sinusoids(positions, cfg.width, halves=halves)
        return vectors.astype(cfg.compute_dtype)


class ScoreBias(nn.Module):
    """The biases that ALiBi (Press 2021) or T5's buckets (Raffel 2020) add to all layers' scores.

    T5's table is `embedding` [buckets, heads], shared by the layers of a stack.
    """

    config: StackConfig
    causal: bool

    @nn.compact
    def __call__(self, places: Places) -> Float[Array, "1 n t s"] | None:
        """The biases [1, N, T, S]; None for kinds that add nothing to the scores."""
        cfg = self.config
        if cfg.positions not in ("alibi", "t5"):
            return None
        distances = places.key[None, :] - places.query[:, None]
        if cfg.positions == "alibi":
            # -slope * |distance|: the further a key is, the less it counts.
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
