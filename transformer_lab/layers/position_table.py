"""Measures on the layers themselves what each kind of positions can and cannot do."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from transformer_lab.errors import LabError
from transformer_lab.layers.attention import Attention
from transformer_lab.layers.config import ADDED, StackConfig
from transformer_lab.layers.positions import Places, PositionVectors, ScoreBias

LENGTH = 10_000  # positions that the measured models are made for
WIDTH, HEADS = 64, 8
SHIFTS = (1, 7, 64)


class Measured(NamedTuple):
    """What was measured for one kind of positions."""

    acts: str  # on the tokens' "vectors", on attention's "scores", or on neither: "-"
    parameters: int  # that it adds to one layer and its input
    unique: bool  # no two of LENGTH positions have equal vectors, no two distances equal scores
    shift_error: float | None  # see `shift_error`; None if it acts on nothing
    any_length: bool  # gives finite numbers beyond LENGTH
    odd_width: bool  # works with vectors of odd width
    least_width: int | None  # the smallest width of unique vectors; None: no vectors, or no width


class Scores(nn.Module):
    """A last token attends to equal tokens, so that its weights depend on the positions alone."""

    config: StackConfig

    @nn.compact
    def __call__(self, places: Places) -> Float[Array, "1 1 d"]:
        attention = Attention(self.config, name="attention")
        token = jnp.cos(jnp.arange(self.config.width) ** 2.0)[None, None]  # any vector
        tokens = jnp.broadcast_to(token, (1, len(places.key), self.config.width))
        key_value = attention.keys_and_values(tokens, places.key)
        bias = ScoreBias(self.config, causal=True)(places)
        return attention(token, key_value, places=places, bias=bias)


def measure(kind: str) -> Measured:
    """Measures one kind of `StackConfig.positions`."""
    config = settings(kind, WIDTH, WIDTH // HEADS)
    adds = kind in ADDED
    rows = traces(config, 0, LENGTH)
    acts = "vectors" if adds else "scores" if np.ptp(rows, axis=0).any() else "-"
    return Measured(
        acts=acts,
        parameters=parameters(config) - parameters(replace(config, positions="none")),
        unique=distinct(rows),
        shift_error=None if acts == "-" else shift_error(config),
        any_length=bool(np.isfinite(traces(config, LENGTH, 256)).all()),
        odd_width=odd_width(kind),
        least_width=least_width(kind) if adds else None,
    )


def settings(kind: str, width: int, head_dim: int) -> StackConfig:
    """Settings of a stack with this kind of positions."""
    return StackConfig(
        positions=kind, width=width, heads=HEADS, head_dim=head_dim, max_length=LENGTH
    )


def traces(config: StackConfig, first: int, length: int) -> Float[np.ndarray, "s d"]:
    """The position vectors [S, D] of `length` positions, or for kinds that act on scores the
    weights [S, N] that the last of them gives to each."""
    keys = first + np.arange(length)
    if config.positions in ADDED:
        return np.asarray(_draw_and_apply(PositionVectors(config), keys)[0])
    _, captured = _draw_and_apply(Scores(config), Places(keys[-1:], keys))
    return np.asarray(captured["intermediates"]["attention"]["weights"][0][0, :, 0].T)


def parameters(config: StackConfig) -> int:
    """The number of parameters of one attention layer and of the position vectors."""
    keys = np.arange(2)
    trees = _shapes(Scores(config), Places(keys[-1:], keys)), _shapes(PositionVectors(config), keys)
    return sum(leaf.size for leaf in jax.tree.leaves(trees))


def _shapes(module, inputs):
    return jax.eval_shape(module.init, jax.random.key(0), inputs).get("params", {})


def _draw_and_apply(module, inputs):
    """Applies a module with random parameters, drawn by numpy, which compiles nothing."""
    rng = np.random.default_rng(0)
    draw = lambda leaf: np.float32(rng.normal(0, WIDTH**-0.5, leaf.shape))  # noqa: E731
    params = jax.tree.map(draw, _shapes(module, inputs))
    return jax.jit(partial(module.apply, mutable="intermediates"))({"params": params}, inputs)


def distinct(rows: Shaped[np.ndarray, "n d"]) -> bool:
    """Whether no two rows are equal."""
    return len(np.unique(rows, axis=0)) == len(rows)


def shift_error(config: StackConfig, length: int = 256) -> float:
    """How far the effect of a shift by k positions is from a fixed one; 0 if it is fixed.

    Vectors: what the best linear map (least squares) from v(p) to v(p + k) leaves over, relative to
    v(p + k). Scores: the change of the weights when query and keys move by k, relative to the
    largest weight. The worst of a few k counts.
    """
    still, errors = traces(config, 0, length), []
    for k in SHIFTS:
        if config.positions in ADDED:
            before, after = still[:-k].astype(np.float64), still[k:]
            left = before @ np.linalg.lstsq(before, after, rcond=None)[0] - after
            error = np.linalg.norm(left) / np.linalg.norm(after)
        else:
            error = np.abs(traces(config, k, length) - still).max() / still.max()
        errors.append(float(error))
    return max(errors)


def odd_width(kind: str) -> bool:
    """Whether an odd width of vectors and heads gives finite numbers."""
    try:
        rows = traces(settings(kind, 33, 33), 0, 16)
    except LabError:
        return False
    return rows.shape == (16, 33 if kind in ADDED else HEADS) and bool(np.isfinite(rows).all())


def least_width(kind: str) -> int | None:
    """The smallest width up to WIDTH at which LENGTH positions have distinct vectors, or None."""
    widths = range(1, WIDTH + 1)
    return next((w for w in widths if distinct(traces(settings(kind, w, 8), 0, LENGTH))), None)
