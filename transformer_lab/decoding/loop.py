"""One loop over a cache: feed the last token, prepare the logits, choose the next token.

`step(tokens [B, 1], cache) -> (logits [B, 1, V] in float32, cache)` is any model that reads one
token and a cache, and returns both anew. It is written for one text in each batch entry. A cache is
a dict: the arrays under "layers" have the leading axis B and belong to a text; everything else,
such as "memory" and "index", is shared by all beams.

`Single` keeps one text for each batch entry, by the likeliest token or by a drawn one; `Beams`
keeps K. Which tokens are allowed is the same for both: see `processors.prepare`.

Letters: B batch, N results each, K beams, V vocabulary, P tokens read, T the most new tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.processors import IMPOSSIBLE, log_prob_of, one_end, prepare
from transformer_lab.ops.sampling import sample

Cache = dict[str, Any]
Step = Callable[[Array, Cache], tuple[Array, Cache]]


class SearchResult(NamedTuple):
    """The best hypotheses for each batch entry, best first, padding after the end token.

    A length counts the end token; 0 stands for no hypothesis, with a score of minus infinity.
    """

    tokens: Int[Array, "b n t"]
    lengths: Int[Array, "b n"]
    log_probs: Float[Array, "b n"]
    scores: Float[Array, "b n"]


class State(NamedTuple):
    """The values that the loop carries from token to token; *rows is B, or B and K."""

    i: Int[Array, ""]  # new tokens made so far
    cache: Cache
    said: Int[Array, "*rows pt"]  # the P tokens read, then those made, then padding
    log_probs: Float[Array, "*rows"]  # the sum over the tokens made
    done: Bool[Array, "b"]
    kept: Any  # what else the kind of loop keeps: see One and SearchResult


@dataclass(frozen=True)
class Loop:
    """The settings of a search; a subclass defines how it starts, chooses and collects results."""

    config: DecodeConfig
    eos_id: int
    pad_id: int
    read: int  # P
    new: int  # T

    def run(self, step: Step, state: State, until: Any) -> State:
        """Makes tokens until `until` of them are made, or every text is done."""

        def body(state):
            last = jnp.take(state.said, self.read + state.i - 1, axis=-1)
            logits, cache = self.apply(step, jnp.maximum(last, 0), state.cache)
            return self.choose(state._replace(cache=cache), logits)

        going = lambda s: (s.i < until) & ~s.done.all()  # noqa: E731
        return jax.lax.while_loop(going, body, state)

    def prepared(self, state: State, logits: Float[Array, "*rows v"], at_limit: Array):
        """The logits of the next token after the processors: see `processors.prepare`."""
        where = state.said, self.read, state.i, at_limit
        return prepare(logits.astype(jnp.float32), self.config, self.eos_id, *where)

    def penalties(self) -> Float[np.ndarray, "lengths"]:
        """The divisors of log-probabilities for the lengths 0 .. T."""
        return self.config.penalties(self.new)


def search(
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
    keys: Key[Array, "b"] | None = None,
    kind: type[Loop] | None = None,
) -> SearchResult:
    """The best continuations of `start` that the config's search finds.

    Args:
        real: batch entries that are not real are done at once, and have no result.
        before: the tokens before `start`, for settings that look back; -1: none.
        keys: one random key for each entry, for a config with a temperature.
        kind: `Single` or `Beams`, by default as `config.beam_size` says.
    """
    past = start[:, None] if before is None else jnp.column_stack([before, start])
    real = jnp.ones(len(start), bool) if real is None else real
    kind = kind or (Beams if config.beam_size > 1 else Single)
    loop = kind(config, eos_id, pad_id, past.shape[1], max_new_tokens)
    state = loop.start(cache, past.astype(jnp.int32), ~real, keys)
    return loop.found(loop.run(step, state, max_new_tokens))


class One(NamedTuple):
    """What `Single` keeps for each text beside its tokens."""

    each: Float[Array, "b t"]  # the log-probability of each token made
    lengths: Int[Array, "b"]  # tokens made, the end token too
    wanted: Int[Array, "b"]  # the most tokens to make
    keys: Key[Array, "b"] | None  # for sampling


def controls_of(config: DecodeConfig) -> tuple[Array, Array, Array]:
    """Temperature, top_k and top_p as arrays, so that other values do not compile anew."""
    kinds = jnp.float32(config.temperature or 1.0), jnp.int32(min(config.top_k, 2**31 - 1))
    return *kinds, jnp.float32(config.top_p)


@dataclass(frozen=True)
class Single(Loop):
    """Keeps one text: the likeliest next token (of equals the lowest id), or a drawn one.

    The arrays hold one chunk more than T tokens, so that any slice of a chunk lies within them.
    """

    controls: tuple[Array, Array, Array] | None = None  # None: `controls_of` the config
    spare: int = 0  # columns of the arrays after the T new tokens

    def start(self, cache, past, done, keys=None, wanted=None) -> State:
        """The state before the first token; `wanted` [B] is each text's limit, by default T."""
        rows, room = len(past), self.new + self.spare
        said = jnp.pad(past, ((0, 0), (0, room)), constant_values=self.pad_id)
        wanted = jnp.full(rows, self.new, jnp.int32) if wanted is None else wanted
        kept = One(jnp.zeros((rows, room)), jnp.zeros(rows, jnp.int32), wanted, keys)
        return State(jnp.zeros((), jnp.int32), cache, said, jnp.zeros(rows), done, kept)

    def apply(self, step: Step, last: Int[Array, "b"], cache: Cache):
        """Logits [B, V] after the last token, and the new cache."""
        logits, cache = step(last[:, None], cache)
        return logits[:, 0], cache

    def choose(self, state: State, logits: Float[Array, "b v"]) -> State:
        """Adds one token to each text that is not done."""
        (each, lengths, wanted, keys), i, done = state.kept, state.i, state.done
        at_limit = i + 1 >= wanted
        prepared = self.prepared(state, logits, at_limit)
        if self.config.temperature:
            here = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
            restricted = bool(self.config.top_k or self.config.top_p < 1)
            controls = self.controls or controls_of(self.config)
            tokens = sample(prepared[0], here, *controls, restricted=restricted)
        else:
            tokens = jnp.argmax(prepared[0], axis=-1).astype(jnp.int32)
        chosen = jnp.where(done, 0.0, log_prob_of(tokens, *prepared))
        tokens = one_end(tokens, self.config, self.eos_id)
        said = state.said.at[:, self.read + i].set(jnp.where(done, self.pad_id, tokens))
        kept = One(each.at[:, i].set(chosen), lengths + ~done, wanted, keys)
        done = done | (tokens == self.eos_id) | at_limit
        return State(i + 1, state.cache, said, state.log_probs + chosen, done, kept)

    def found(self, state: State) -> SearchResult:
        """The one text of each batch entry as a result with N = 1."""
        lengths, tokens = state.kept.lengths, state.said[:, self.read :]
        log_probs = jnp.where(lengths > 0, state.log_probs, IMPOSSIBLE)
        scores = log_probs / jnp.asarray(self.penalties())[lengths]
        return SearchResult(*(x[:, None] for x in (tokens, lengths, log_probs, scores)))


@dataclass(frozen=True)
class Beams(Loop):
    """Keeps K live texts, best first, and the K best finished ones (in `State.kept`).

    At each step the 2K best continuations of the K live beams are taken, so that K live ones remain
    even if K of them end. Of those among the best K, the ones that end (or reach the limit) are
    finished, and compete by log-probability / penalty for K places. Of equal scores the earlier one
    wins, then the better beam, then the lower id.
    """

    def start(self, cache, past, done, keys=None) -> State:
        """The state before the first token; one beam is live, as the others would repeat it."""
        rows, width = len(past), self.config.beam_size
        cache = {**cache, "layers": jax.tree.map(
            lambda x: jnp.broadcast_to(x, (width, *x.shape)), cache["layers"]
        )}  # fmt: skip
        tokens = jnp.full((rows, width, self.new), self.pad_id, jnp.int32)
        past = jnp.broadcast_to(past[:, None], (rows, width, self.read))
        nothing = jnp.full((rows, width), IMPOSSIBLE)
        finished = SearchResult(tokens, jnp.zeros((rows, width), jnp.int32), nothing, nothing)
        said = jnp.concatenate([past, tokens], axis=-1)
        first = nothing.at[:, 0].set(0.0)
        return State(jnp.zeros((), jnp.int32), cache, said, first, done, finished)

    def apply(self, step: Step, last: Int[Array, "b k"], cache: Cache):
        """Logits [B, K, V] after the last tokens, and the new cache.

        The step is mapped over the beams, so that the memory is neither copied for them nor read
        once for each: their queries become one matrix.
        """
        axes = {name: 0 if name == "layers" else None for name in cache}
        over_beams = jax.vmap(step, in_axes=(0, axes), out_axes=(0, axes))
        logits, cache = over_beams(last.T[:, :, None], cache)
        return jnp.swapaxes(logits[:, :, 0], 0, 1), cache

    def choose(self, state: State, logits: Float[Array, "b k v"]) -> State:
        """Adds one token to each beam, and moves the beams that end among the finished ones."""
        at_limit = state.i + 1 == self.new
        allowed, _, log_norm = self.prepared(state, logits, at_limit)
        scores, parents, ids = _continuations(allowed, log_norm, state.log_probs)
        ids = one_end(ids, self.config, self.eos_id)
        said = jnp.take_along_axis(state.said, parents[:, :, None], axis=1)
        said = said.at[:, :, self.read + state.i].set(ids)
        ends = (ids == self.eos_id) | at_limit
        width = self.config.beam_size
        live, order = jax.lax.top_k(jnp.where(ends, IMPOSSIBLE, scores), width)
        finished = self._finish(state, said[..., self.read :], scores, ends)
        done = state.done | self._is_over(live, finished.scores, state.i + 1)
        cache = _reorder(state.cache, jnp.take_along_axis(parents, order, axis=1))
        said = jnp.take_along_axis(said, order[:, :, None], axis=1)
        return State(state.i + 1, cache, said, live, done, finished)

    def found(self, state: State) -> SearchResult:
        """The `config.n_best` finished hypotheses with the highest scores."""
        return SearchResult(*(x[:, : self.config.n_best] for x in state.kept))

    def _finish(self, state: State, tokens, scores, ends) -> SearchResult:
        """The K best among the finished hypotheses and the continuations that end now."""
        width, length = self.config.beam_size, state.i + 1
        among_best = jnp.arange(scores.shape[1]) < width
        ends = ends & among_best & (scores > IMPOSSIBLE) & ~state.done[:, None]
        final = jnp.where(ends, scores / jnp.asarray(self.penalties())[length], IMPOSSIBLE)
        new = SearchResult(tokens, jnp.full(scores.shape, length), scores, final)
        both = jax.tree.map(lambda old, x: jnp.concatenate([old, x], axis=1), state.kept, new)
        # The old ones stand first: they win ties, and no impossible one fills a free place.
        final, order = jax.lax.top_k(both.scores, width)
        pick = lambda x: jnp.take_along_axis(x, order, axis=1)  # noqa: E731
        kept = jnp.take_along_axis(both.tokens, order[:, :, None], axis=1)
        return SearchResult(kept, pick(both.lengths), pick(both.log_probs), final)

    def _is_over(self, live, finished, length):
        """Which batch entries [B] stop after `length` tokens, by `config.early_stopping`."""
        config, best, penalties = self.config, live[:, 0], self.penalties()
        if config.early_stopping == "first" or config.beam_size == 1:
            return (finished[:, -1] > IMPOSSIBLE) | (best == IMPOSSIBLE)
        if config.early_stopping == "heuristic":
            return best / jnp.asarray(penalties)[length] <= finished[:, -1]
        # A log-probability only falls, so the most that a live beam can score is what it would have
        # now under the largest penalty of any length that it may still end at.
        later = np.append(penalties[1:], penalties[-1])
        reachable = jnp.asarray(np.maximum.accumulate(later[::-1])[::-1])
        return best / reachable[length] <= finished[:, config.n_best - 1]


def _reorder(cache: Cache, parents: Int[Array, "b k"]) -> Cache:
    """The cache with each beam's part replaced by that of its parent."""

    def take(x):
        index = parents.T.reshape(*x.shape[:2], *[1] * (x.ndim - 2))
        return jnp.take_along_axis(x, index, axis=0)

    return {**cache, "layers": jax.tree.map(take, cache["layers"])}


def _continuations(logits, log_norm, log_probs):
    """The 2K best continuations, [B, 2K]: log-probabilities, the beams they extend, tokens.

    First the best of each beam are found, then the best of those: a top-k over K * V is several
    times as slow.
    """
    most = 2 * logits.shape[1]
    best, ids = jax.lax.top_k(logits, min(most, logits.shape[-1]))
    per_beam = best.shape[-1]
    scores = (best - log_norm[..., None] + log_probs[..., None]).reshape(len(best), -1)
    scores, places = jax.lax.top_k(scores, min(most, scores.shape[-1]))
    ids = jnp.take_along_axis(ids.reshape(len(ids), -1), places, axis=1)
    return scores, places // per_beam, ids
