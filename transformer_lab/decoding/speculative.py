"""Speculative decoding: a small model drafts tokens, the large one judges them in one pass.

The text has exactly the distribution of the large model's own (Leviathan 2023, algorithm 1 and
appendix A.1). Letters: G drafted tokens, V vocabulary, T tokens of the text with room.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.decoding.batch import row_keys
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.generate import ROOM, Generator, Stops, _said
from transformer_lab.decoding.loop import Cache, controls_of
from transformer_lab.decoding.processors import log_prob_of, one_end, prepare
from transformer_lab.errors import LabError
from transformer_lab.ops.sampling import restrict


def judge(
    p: Float[Array, "g1 v"], q: Float[Array, "g v"], drafts: Int[Array, "g"]
) -> tuple[Float[Array, "g"], Float[Array, "g1 v"]]:
    """How the large model's probabilities p judge tokens drafted with probabilities q.

    Returns: with which probability each draft is accepted, min(1, p / q); and the distribution of
    the token that follows the drafts before it: where a draft is refused max(p - q, 0), normalised,
    and after all of them p. With p = (0.5, 0.5) and q = (0.75, 0.25), draft 0 is accepted with 2/3,
    and else token 1 follows.
    """
    pick = lambda x: jnp.take_along_axis(x, drafts[:, None], axis=1)[:, 0]  # noqa: E731
    accepted = jnp.minimum(1.0, pick(p[:-1]) / jnp.maximum(pick(q), jnp.finfo(jnp.float32).tiny))
    rest = jnp.maximum(p[:-1] - q, 0.0)
    total = rest.sum(axis=-1, keepdims=True)
    # Where p = q nothing is refused, and rounding must not divide by nothing.
    rest = jnp.where(total > 0, rest / jnp.where(total > 0, total, 1.0), p[:-1])
    return accepted, jnp.concatenate([rest, p[-1:]])


class Speculated(NamedTuple):
    """What the loop carries. Both caches hold all tokens of the text but the last."""

    said: Int[Array, "t"]
    log_probs: Float[Array, "t"]  # of the tokens made, by the large model
    made: Int[Array, ""]
    rounds: Int[Array, ""]
    done: Bool[Array, ""]
    caches: tuple[Cache, Cache]  # the large model's and the draft's, of one text


class Speculator(Generator):
    """A generator of one text at a time, with drafts of `drafted` tokens from another model.

    Both models read the same ids. Greedy texts are those of `Generator`; drawn ones have its
    distribution, by other draws. `rounds` counts passes of the large model, `tokens` what they
    made. Raises: LabError for a model whose cache cannot be stepped back, as that of a state space
    or a window.
    """

    def __init__(
        self,
        model: nn.Module,
        config: DecodeConfig,
        draft: tuple[nn.Module, Any],
        *,
        eos_id: int,
        drafted: int = 4,
    ):
        super().__init__(model, config, eos_id=eos_id)
        if config.beam_size > 1:
            raise LabError("a draft does not go with decode.beam_size > 1: set it to 1")
        self.draft, self.draft_params = draft
        self.drafted, self.rounds, self.tokens = drafted, 0, 0
        if self.draft.config.vocab_size != model.config.vocab_size:
            raise LabError(
                f"the draft has a vocabulary of {self.draft.config.vocab_size}, the model of "
                f"{model.config.vocab_size}: both must read the same tokens"
            )
        self.max_length = min(self.max_length, self.draft.config.max_length)
        self._begin = jax.jit(self._prefilled, static_argnames="length")
        self._go_on = jax.jit(self._judged, donate_argnums=1, static_argnames="read")

    def stream(
        self,
        params: Any,
        prompts: Sequence[Sequence[int]],
        numbers: Sequence[int] | None = None,
        seed: int = 0,
        stops: Stops | None = None,
        chunk: int = 4,
    ) -> Iterator[tuple[int, list[int], list[float]]]:
        """As `Generator.stream`, one prompt after the other."""
        params = {"params": params}, {"params": self.draft_params}
        for row, prompt in enumerate(prompts):
            limit = self.new_tokens(prompt)
            _, read, length = self._shape([prompt], limit)
            key = row_keys([prompt], [numbers[row] if numbers else 0], seed, 1)[0]
            length += -(-(self.drafted + 1) // ROOM) * ROOM
            state = self._begin(params, *self._batch([prompt], 1, read), length=length)
            made: list[int] = []
            while len(made) < limit and made[-1:] != [self.eos_id]:
                until = jnp.int32(min(len(made) + chunk, limit))
                how = key, jnp.int32(limit), until, controls_of(self.config)
                state = self._go_on(params, state, *how, read=read)
                count, rounds = int(state.made), int(state.rounds)
                new = np.asarray(state.said)[read + len(made) : read + count].tolist()
                scores = np.asarray(state.log_probs)[len(made) : count].tolist()
                made += new
                yield row, new, scores
                if stops and stops(prompt, made):
                    break
            self.rounds, self.tokens = self.rounds + rounds, self.tokens + len(made)

    # The functions that are compiled.

    def _prefilled(self, params, tokens, segments, *, length):
        """The state after a prompt; the last token is read again by the first round."""
        self.compilations += 1
        caches = []
        for model, its in zip((self.model, self.draft), params, strict=True):
            refuse_states(model, its, length)
            cache = model.apply(its, tokens, segments, length, method="prefill")[1]
            caches.append(cache | {"index": cache["index"] - 1})
        said = jnp.pad(_said(tokens, segments)[0], (0, length - tokens.shape[1]))
        none = jnp.zeros((), jnp.int32)
        return Speculated(said, jnp.zeros(length), none, none, jnp.bool_(False), tuple(caches))

    def _judged(self, params, state, key, limit, until, controls, *, read):
        """The state after rounds that make tokens up to `until` or beyond."""
        self.compilations += 1
        going = lambda state: (state.made < until) & ~state.done  # noqa: E731
        round_ = lambda state: self._round(params, state, key, limit, controls, read)  # noqa: E731
        return jax.lax.while_loop(going, round_, state)

    def _round(self, params, state: Speculated, key: Key[Array, ""], limit, controls, read):
        """Drafts G tokens and keeps those up to the first refused one, and one more."""
        g, made, place = self.drafted, state.made, read + state.made
        keys = jax.random.split(jax.random.fold_in(key, made), g + 2)
        whose = partial(self.model.apply, params[0], method="step")
        drafts = partial(self.draft.apply, params[1], method="step")

        def ready(logits, said, i):
            more = said, read, i, i + 1 >= limit
            return prepare(logits.astype(jnp.float32), self.config, self.eos_id, *more)

        def draft(carry, j):
            said, cache = carry
            last = jax.lax.dynamic_slice(said, (place + j - 1,), (1,))
            logits, cache = drafts(last[None], cache)
            q = self._chances(ready(logits[0, 0], said, made + j)[0], controls)
            token = self._drawn(keys[j], q)
            return (said.at[place + j].set(token), cache), (token, q)

        # The last step only puts the last draft into the cache.
        (said, draft_cache), (tokens, q) = jax.lax.scan(
            draft, (state.said, state.caches[1]), jnp.arange(g + 1)
        )
        seen = jax.lax.dynamic_slice(said, (place - 1,), (g + 1,))
        logits, cache = whose(seen[None], state.caches[0])
        prepared = jax.vmap(ready, (0, None, 0))(logits[0], said, made + jnp.arange(g + 1))
        p = self._chances(prepared[0], controls)
        accepted, after = judge(p, q[:g], tokens[:g])
        ok = jax.random.uniform(keys[g + 1], (g,)) < accepted
        count = jnp.cumprod(ok).sum()
        last = self._drawn(keys[g], after[count])
        tokens = tokens.at[count].set(last)
        scores = log_prob_of(tokens, *prepared)
        tokens = one_end(tokens, self.config, self.eos_id)
        ends = (tokens == self.eos_id) | (made + jnp.arange(g + 1) + 1 >= limit)
        new = jnp.minimum(count, jnp.argmax(ends | (jnp.arange(g + 1) == g))) + 1
        said = jax.lax.dynamic_update_slice(said, tokens, (place,))
        log_probs = jax.lax.dynamic_update_slice(state.log_probs, scores, (made,))
        old = state.caches[0]["index"], state.caches[1]["index"]
        caches = cache | {"index": old[0] + new}, draft_cache | {"index": old[1] + new}
        done = ends[new - 1]
        return Speculated(said, log_probs, made + new, state.rounds + 1, done, caches)

    def _drawn(self, key: Key[Array, ""], chances: Float[Array, "v"]) -> Int[Array, ""]:
        """A token of this distribution, without a draw where one token has all of it."""
        if not self.config.temperature:
            return jnp.argmax(chances).astype(jnp.int32)
        return jax.random.categorical(key, jnp.log(chances)).astype(jnp.int32)

    def _chances(self, logits: Float[Array, "*rows v"], controls) -> Float[Array, "*rows v"]:
        """The probabilities with which a token is drawn; of the likeliest 1, if none is drawn."""
        if not self.config.temperature:
            return jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
        temperature, top_k, top_p = controls
        rows = logits.reshape(-1, logits.shape[-1])
        rows = (rows - rows.max(axis=-1, keepdims=True)) / temperature
        return jax.nn.softmax(restrict(rows, top_k, top_p)).reshape(logits.shape)


def refuse_states(model: nn.Module, variables: Any, length: int) -> None:
    """LabError for a model whose cache holds more than a column for each token."""
    one = jnp.zeros((1, 1), jnp.int32)
    shapes = lambda length: jax.eval_shape(  # noqa: E731
        lambda v: model.apply(v, one, one, length, method="prefill")[1]["layers"], variables
    )
    both = zip(*(jax.tree.leaves(shapes(n)) for n in (length, length + 1)), strict=True)
    if any(a.shape == b.shape for a, b in both):
        raise LabError(
            "drafts need models that can take tokens back: attention to all of a text, not a "
            "state space, a recurrent net or a window"
        )
