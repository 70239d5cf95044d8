"""Scores that describe each head: entropy, mean distance, previous token, induction."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer_lab.ops import heads
from transformer_lab.viewing.capture import Map, Maps, decoder_weights

NAMES = ("entropy", "distance", "previous token", "induction")
Scores = dict[str, Float[np.ndarray, "layers heads"]]


def table(task: Any, params: Any, maps: Maps) -> Iterator[tuple[str, ...]]:
    """One line for each head: its map, layer, number, and the scores in `NAMES` ("-": no value)."""
    for name, found in maps.items():
        scores = measure(found)
        if hasattr(task, "prompt_ids"):
            scores["induction"] = induction(task, params)
        for place in np.ndindex(found.weights.shape[:2]):
            values = (f"{scores[n][place]:.3f}" if n in scores else "-" for n in NAMES)
            yield name, *map(str, place), *values


def measure(found: Map) -> Scores:
    """Each head's scores for one map; distances are in tokens, or in patches between patches."""
    weights = jnp.asarray(found.weights)
    scores = {"entropy": heads.entropy(weights)}
    between = found.rows == found.columns  # the same tokens, or patches
    if between and found.grid is not None:
        count = found.grid[0] * found.grid[1]
        scores["distance"] = heads.mean_distance(
            weights[..., -count:, -count:], heads.patch_places(found.grid)
        )
    elif between:
        scores["distance"] = heads.mean_distance(weights)
        scores["previous token"] = heads.previous_token_score(weights)
    return {name: np.asarray(values) for name, values in scores.items()}


def induction(
    task: Any, params: Any, period: int = 32, rows: int = 4, seed: int = 0
) -> Float[np.ndarray, "layers heads"]:
    """The induction score of a language model on random tokens that are repeated once. Each of
    `rows` sequences is `period` random tokens, written twice. Returns the mean of the scores."""
    period = min(period, (task.model_config.max_length - 1) // 2)
    tok = task.tokenizer
    ordinary = [i for i in range(tok.vocab_size) if i not in tok.special_ids]
    once = np.random.default_rng(seed).choice(ordinary, (rows, period))
    start = np.full((rows, 1), task.start_id)
    tokens = jnp.asarray(np.concatenate([start, once, once], axis=1), jnp.int32)
    weights = jnp.asarray(decoder_weights(task, params, tokens, 0)[..., 1:, 1:])
    return np.asarray(heads.induction_score(weights, period)).mean(axis=0)
