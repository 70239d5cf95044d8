"""Greedy and beam search over any model that takes one token and a cache, and returns both anew.

`step(tokens [B, 1], cache) -> (logits [B, 1, V] in float32, cache)` is written for one hypothesis a
row. A cache is a dict: leaves under "layers" have the leading axis B and belong to a hypothesis;
everything else, such as "memory" and "index", is the same for all hypotheses of a row. Beam search
maps the step over the beams (`jax.vmap`), so the memory is neither copied for them nor read once
for each: their queries become one matrix.

Letters: B rows, N results a row, K beams, V vocabulary, T the most new tokens.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.processors import IMPOSSIBLE, log_prob_of, one_end, prepare

Cache = dict[str, Any]
Step = Callable[[Array, Cache], tuple[Array, Cache]]


class SearchResult(NamedTuple):
    """The best hypotheses of each row, best first, padding after the end token.

    A length counts the end token; 0 stands for no hypothesis, with a score of minus infinity.
    """

    tokens: Int[Array, "b n t"]
    lengths: Int[Array, "b n"]
    log_probs: Float[Array, "b n"]
    scores: Float[Array, "b n"]


def greedy(
    step: Step,
    cache: Cache,
    start: Int[Array, "b"],
    config: DecodeConfig,
    *,
    eos_id: int,
    pad_id: int,
    max_new_tokens: int,
    real: Bool[Array, "b"] | None = None,
    before: Int[Array, "b p"] | None = None,
) -> SearchResult:
    """The likeliest next token (of equals the lowest id), until the end token or the limit.

    Rows that are not `real` are done at once. The loop ends with its last row. `before` holds the
    tokens that came before `start`, for settings that look back; -1 stands for none.
    """
    penalties = jnp.asarray(config.penalties(max_new_tokens))
    past = start[:, None] if before is None else jnp.column_stack([before, start])

    def body(state):
        i, cache, last, tokens, lengths, log_probs, done = state
        logits, cache = step(last[:, None], cache)
        at_limit = i + 1 == max_new_tokens
        said = jnp.concatenate([past, tokens], axis=-1)
        prepared = prepare(logits[:, 0], config, eos_id, said, past.shape[1], i, at_limit)
        best = jnp.argmax(prepared[0], axis=-1)
        chosen = log_prob_of(best, *prepared)
        best = one_end(best, config, eos_id)
        last = jnp.where(done, pad_id, best.astype(jnp.int32))
        lengths = lengths + ~done
        log_probs = log_probs + jnp.where(done, 0.0, chosen)
        return (
            i + 1,
            cache,
            last,
            tokens.at[:, i].set(last),
            lengths,
            log_probs,
            done | (best == eos_id),
        )

    rows = start.shape[0]
    done = jnp.zeros(rows, bool) if real is None else ~real
    counts = jnp.zeros(rows, jnp.int32)
    tokens = jnp.full((rows, max_new_tokens), pad_id, jnp.int32)
    state = (0, cache, start.astype(jnp.int32), tokens, counts, jnp.zeros(rows), done)
    going = lambda s: (s[0] < max_new_tokens) & ~s[-1].all()  # noqa: E731
    *_, tokens, lengths, log_probs, _ = jax.lax.while_loop(going, body, state)
    log_probs = jnp.where(lengths > 0, log_probs, IMPOSSIBLE)
    result = SearchResult(tokens, lengths, log_probs, log_probs / penalties[lengths])
    return SearchResult(*(x[:, None] for x in result))


class _Beams(NamedTuple):
    """The loop's state: K live hypotheses a row and the K best finished ones, both best first."""

    i: Int[Array, ""]  # tokens generated
    cache: Cache  # leaves under "layers": [K, B, ...]
    tokens: Int[Array, "b k t"]  # of the live ones
    log_probs: Float[Array, "b k"]
    finished: SearchResult
    done: Bool[Array, "b"]


def beam_search(
    step: Step,
    cache: Cache,
    start: Int[Array, "b"],
    config: DecodeConfig,
    *,
    eos_id: int,
    pad_id: int,
    max_new_tokens: int,
    real: Bool[Array, "b"] | None = None,
    before: Int[Array, "b p"] | None = None,
) -> SearchResult:
    """The `config.n_best` hypotheses of highest score that `config.beam_size` beams find.

    At each step the 2K best continuations of the K live beams are drawn, so that K live ones remain
    whatever ends. Of those among the best K, the ones that end (or reach the limit) are finished,
    and compete by log-probability / penalty for K places. Equal scores: the earlier one, then the
    better beam, then the lower id. Rows that are not `real` are done at once. `before` is that of
    `greedy`.
    """
    width, rows = config.beam_size, start.shape[0]
    penalties = config.penalties(max_new_tokens)
    over_beams = _map_over_beams(step)
    firsts = jnp.broadcast_to(start[:, None], (rows, width))
    past = start[:, None] if before is None else jnp.column_stack([before, start])
    past = jnp.broadcast_to(past[:, None], (rows, width, past.shape[1]))

    def body(state: _Beams) -> _Beams:
        last = jnp.where(state.i == 0, firsts, state.tokens[:, :, state.i - 1])
        logits, cache = over_beams(last, state.cache)
        at_limit = state.i + 1 == max_new_tokens
        said = jnp.concatenate([past, state.tokens], axis=-1)
        allowed, _, log_norm = prepare(
            logits, config, eos_id, said, past.shape[-1], state.i, at_limit
        )
        scores, parents, ids = _continuations(allowed, log_norm, state)
        ids = one_end(ids, config, eos_id)
        tokens = jnp.take_along_axis(state.tokens, parents[:, :, None], axis=1)
        tokens = tokens.at[:, :, state.i].set(ids)
        ends = (ids == eos_id) | at_limit
        live, order = jax.lax.top_k(jnp.where(ends, IMPOSSIBLE, scores), width)
        finished = _finish(state, tokens, scores, ends, jnp.asarray(penalties))
        done = state.done | _is_over(live, finished.scores, state.i + 1, config, penalties)
        cache = _reorder(cache, jnp.take_along_axis(parents, order, axis=1))
        tokens = jnp.take_along_axis(tokens, order[:, :, None], axis=1)
        return _Beams(state.i + 1, cache, tokens, live, finished, done)

    spread = lambda x: jnp.broadcast_to(x, (width, *x.shape))  # noqa: E731
    cache = {**cache, "layers": jax.tree.map(spread, cache["layers"])}
    tokens = jnp.full((rows, width, max_new_tokens), pad_id, jnp.int32)
    nothing = jnp.full((rows, width), IMPOSSIBLE)
    finished = SearchResult(tokens, jnp.zeros((rows, width), jnp.int32), nothing, nothing)
    # One live beam at first: the others would repeat it.
    log_probs = nothing.at[:, 0].set(0.0)
    done = jnp.zeros(rows, bool) if real is None else ~real
    state = _Beams(jnp.zeros((), jnp.int32), cache, tokens, log_probs, finished, done)
    going = lambda s: (s.i < max_new_tokens) & ~s.done.all()  # noqa: E731
    found = jax.lax.while_loop(going, body, state).finished
    return SearchResult(*(x[:, : config.n_best] for x in found))


def _map_over_beams(step: Step) -> Callable:
    """tokens [B, K] and a cache -> logits [B, K, V] and the new cache."""

    def mapped(tokens, cache):
        axes = {name: 0 if name == "layers" else None for name in cache}
        per_beam = jax.vmap(step, in_axes=(0, axes), out_axes=(0, axes))
        logits, cache = per_beam(tokens.T[:, :, None], cache)
        return jnp.swapaxes(logits[:, :, 0], 0, 1), cache

    return mapped


def _reorder(cache: Cache, parents: Int[Array, "b k"]) -> Cache:
    """Each beam's cache becomes its parent's."""

    def take(x):
        index = parents.T.reshape(*x.shape[:2], *[1] * (x.ndim - 2))
        return jnp.take_along_axis(x, index, axis=0)

    return {**cache, "layers": jax.tree.map(take, cache["layers"])}


def _continuations(logits, log_norm, state: _Beams):
    """The 2K best: log-probabilities, beams they come from and tokens, each [B, 2K].

    First the best of each beam, then of those: a top-k of K * V is several times as slow.
    """
    most = 2 * logits.shape[1]
    best, ids = jax.lax.top_k(logits, min(most, logits.shape[-1]))
    per_beam = best.shape[-1]
    scores = (best - log_norm[..., None] + state.log_probs[..., None]).reshape(len(best), -1)
    scores, places = jax.lax.top_k(scores, min(most, scores.shape[-1]))
    ids = jnp.take_along_axis(ids.reshape(len(ids), -1), places, axis=1)
    return scores, places // per_beam, ids


def _finish(state: _Beams, tokens, scores, ends, penalties) -> SearchResult:
    """The K best of the finished hypotheses and those continuations that end now."""
    width = state.log_probs.shape[1]
    among_best = jnp.arange(scores.shape[1]) < width
    ends = ends & among_best & (scores > IMPOSSIBLE) & ~state.done[:, None]
    length = jnp.full(scores.shape, state.i + 1)
    final = jnp.where(ends, scores / penalties[state.i + 1], IMPOSSIBLE)
    new = SearchResult(tokens, length, scores, final)
    both = jax.tree.map(lambda old, x: jnp.concatenate([old, x], axis=1), state.finished, new)
    # The old ones stand first: they win ties, and no impossible one fills a free place.
    final, order = jax.lax.top_k(both.scores, width)
    pick = lambda x: jnp.take_along_axis(x, order, axis=1)  # noqa: E731
    kept = jnp.take_along_axis(both.tokens, order[:, :, None], axis=1)
    return SearchResult(kept, pick(both.lengths), pick(both.log_probs), final)


def _is_over(live, finished, length, config: DecodeConfig, penalties: np.ndarray):
    """The rows [B] that stop, by `config.early_stopping`, after `length` tokens."""
    best = live[:, 0]
    if config.early_stopping == "first" or config.beam_size == 1:
        return (finished[:, -1] > IMPOSSIBLE) | (best == IMPOSSIBLE)
    if config.early_stopping == "heuristic":
        return best / jnp.asarray(penalties)[length] <= finished[:, -1]
    # A log-probability only falls, so the most that a live beam can score is what it would have now
    # under the largest penalty of any length that it may still end at.
    later = np.append(penalties[1:], penalties[-1])
    reachable = jnp.asarray(np.maximum.accumulate(later[::-1])[::-1])
    return best / reachable[length] <= finished[:, config.n_best - 1]
