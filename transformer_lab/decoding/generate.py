"""Continuing prompts: one pass over the prompt, then token by token over a cache of fixed size."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer_lab.decoding.batch import Batch, fill, row_keys, to_host
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.loop import Single, State, controls_of, search
from transformer_lab.decoding.processors import NOTHING, refuse_unknown
from transformer_lab.errors import LabError

CHUNK = 32  # tokens that one call makes at most, before the host looks at them
ROOM = 64  # a cache's length is a multiple of this
Stops = Callable[[Sequence[int], list[int]], bool]  # whether (prompt, new ids) is complete


class Generated(NamedTuple):
    """One continuation without its end token, and the log-probability of each token.

    Log-probabilities are the model's own, whatever the temperature; that of the end token, if there
    is one, comes last.
    """

    ids: list[int]
    log_probs: list[float]
    ended: bool  # True if the end token or a stop string ended it, not its length


class Generator:
    """Continues prompts with a decoder-only model; a result never depends on its batch mates.

    Prompts are aligned at the right end of their bucket, so that all continue at one position;
    batch sizes and lengths come in few sizes, each compiled once. Random draws depend on (seed,
    prompt, number of the sample) alone. The model has `config.max_length`, `prefill` and `step`, as
    in `models.decoder`. Raises: LabError where prompt and new tokens exceed max_length. `place`
    puts a batch ({"tokens", "segments"}, numpy) on devices.
    """

    def __init__(
        self,
        model: nn.Module,
        config: DecodeConfig,
        *,
        eos_id: int,
        rows_multiple: int = 1,
        place: Callable[[Batch], Batch] | None = None,
    ):
        self.model, self.config, self.eos_id = model, config, eos_id
        refuse_unknown(config, eos_id, model.config.vocab_size)
        self.max_length, self.rows_multiple = model.config.max_length, rows_multiple
        self.shrinks = False  # whether decode.max_new_tokens gives way where a prompt is long
        self.compilations = 0  # traces so far: at most two a shape
        self._place = place or (lambda batch: jax.tree.map(jnp.asarray, batch))
        self._prefill = jax.jit(self._first, static_argnames="length")
        self._continue = jax.jit(self._more, donate_argnums=1, static_argnames="read")
        self._search = jax.jit(self._beams, static_argnames="new_tokens")

    def __call__(
        self,
        params: Any,
        prompts: Sequence[Sequence[int]],
        samples: int = 1,
        seed: int = 0,
        stops: Stops | None = None,
    ) -> list[list[Generated]]:
        """The continuations of each prompt: `samples` of them, or a beam search's `n_best`."""
        limits = [self.new_tokens(prompt) for prompt in prompts]
        if self.config.beam_size > 1:
            return self._beam_search(params, prompts, limits, stops)
        found: list[list[Generated]] = [[] for _ in prompts]
        jobs = [(n, i) for n in range(len(prompts)) for i in range(samples)]
        jobs.sort(key=lambda job: len(prompts[job[0]]))
        for first in range(0, len(jobs), self.config.batch_size):
            some = jobs[first : first + self.config.batch_size]
            rows = [Generated([], [], False) for _ in some]
            for row, ids, log_probs in self.stream(
                params, [prompts[n] for n, _ in some], [i for _, i in some], seed, stops, CHUNK
            ):
                rows[row].ids.extend(ids)
                rows[row].log_probs.extend(log_probs)
            for (n, _), row in zip(some, rows, strict=True):
                found[n].append(self._finished(row, prompts[n], stops))
        return found

    def _finished(self, row: Generated, prompt, stops: Stops | None) -> Generated:
        if stops and stops(prompt, row.ids):  # cut after the token that completes the stop string
            first = next(n for n in range(1, len(row.ids) + 1) if stops(prompt, row.ids[:n]))
            return Generated(row.ids[:first], row.log_probs[:first], True)
        if row.ids and row.ids[-1] == self.eos_id:
            return Generated(row.ids[:-1], row.log_probs, True)
        return row

    def stream(
        self,
        params: Any,
        prompts: Sequence[Sequence[int]],
        numbers: Sequence[int] | None = None,
        seed: int = 0,
        stops: Stops | None = None,
        chunk: int = 4,
    ) -> Iterator[tuple[int, list[int], list[float]]]:
        """Yields (number of the prompt, new ids, their log-probabilities), `chunk` ids at a time.

        More than `CHUNK` ids never come at once. All prompts form one batch; `numbers` tell the
        samples of one prompt apart. An end token is yielded too.
        """
        limits = [self.new_tokens(prompt) for prompt in prompts]
        rows, length, cache = self._shape(prompts, max(limits, default=1))
        keys = row_keys(prompts, numbers or [0] * len(prompts), seed, rows)
        wanted = np.zeros(rows, np.int32)
        wanted[: len(limits)] = limits
        controls = controls_of(self.config)
        state, out = self._prefill(
            {"params": params}, *self._batch(prompts, rows, length), keys, wanted, controls,
            length=cache,
        )  # fmt: skip
        made: list[list[int]] = [[] for _ in prompts]
        over = np.arange(rows) >= len(prompts)
        while True:
            tokens, log_probs, counts = to_host(out)
            for row in range(len(prompts)):
                ids = tokens[row, : counts[row]].tolist()
                if not ids or over[row]:
                    continue
                made[row].extend(ids)
                yield row, ids, log_probs[row, : len(ids)].tolist()
                ended = ids[-1] == self.eos_id or len(made[row]) >= limits[row]
                over[row] = ended or bool(stops and stops(prompts[row], made[row]))
            if over.all():
                return
            state, out = self._continue(
                {"params": params}, state, jnp.asarray(over), controls,
                jnp.int32(min(chunk, CHUNK)), read=length,
            )  # fmt: skip

    def new_tokens(self, prompt: Sequence[int]) -> int:
        """The most tokens that may follow a prompt; LabError if they do not fit the context."""
        room = self.max_length - len(prompt)
        wanted = self.config.max_new_tokens or room
        if self.shrinks and room > 0:
            wanted = min(wanted, room)
        if not prompt or room < max(wanted, 1):
            asked = f"decode.max_new_tokens = {wanted}" if prompt else "an empty prompt"
            raise LabError(
                f"a prompt of {len(prompt)} tokens and {asked} do not fit model.max_length = "
                f"{self.max_length}: shorten one of them"
            )
        return wanted

    def _shape(self, prompts, new_tokens: int) -> tuple[int, int, int]:
        """The compiled shape that holds the prompts: batch size, prompt length, cache length."""
        rows = _power(len(prompts), self.rows_multiple)
        prompt = min(_power(max(map(len, prompts)), 8), self.max_length)
        return rows, prompt, -(-(prompt + new_tokens) // ROOM) * ROOM

    def _batch(self, prompts, rows: int, length: int) -> tuple[Array, Array]:
        """Tokens and segments [rows, length] on the devices, each prompt ending in the last column;
        segment 0 is padding."""
        tokens, real = fill(prompts, rows, length, left=True)
        batch = self._place({"tokens": tokens, "segments": real.astype(np.int32)})
        return batch["tokens"], batch["segments"]

    # The functions that are compiled.

    def _loop(self, read: int, length: int, controls) -> Single:
        """The loop over texts of `read` prompt tokens with a cache for `length` tokens."""
        ids = self.eos_id, self.eos_id  # the second fills rows that ended, and nothing reads it
        return Single(self.config, *ids, read, length - read, controls, spare=CHUNK)

    def _first(self, variables, tokens, segments, keys, wanted, controls, *, length):
        self.compilations += 1  # runs only while tracing
        logits, cache = self.model.apply(variables, tokens, segments, length, method="prefill")
        loop = self._loop(tokens.shape[1], length, controls)
        state = loop.start(cache, _said(tokens, segments), wanted == 0, keys, wanted)
        state = loop.choose(state, logits[:, -1])
        return state, _made(state, tokens.shape[1], 0, 0)

    def _more(self, variables, state: State, over, controls, chunk, *, read):
        self.compilations += 1
        loop = self._loop(read, state.said.shape[1] - CHUNK, controls)
        before, counts = state.i, state.kept.lengths
        step = partial(self.model.apply, variables, method="step")
        state = loop.run(step, state._replace(done=state.done | over), before + chunk)
        return state, _made(state, read, before, counts)

    # Beam search.

    def _beam_search(self, params, prompts, limits, stops) -> list[list[Generated]]:
        if self.model.reads_prefix:
            raise LabError('decode.beam_size > 1 does not go with model.mask = "prefix"')
        found: list[list[Generated]] = [[] for _ in prompts]
        for limit in sorted(set(limits)):
            mine = [n for n, other in enumerate(limits) if other == limit]
            for first in range(0, len(mine), self.config.batch_size):
                some = mine[first : first + self.config.batch_size]
                results = self._search_batch(params, prompts, some, limit, stops)
                for n, result in zip(some, results, strict=True):
                    found[n] = result
        return found

    def _search_batch(self, params, prompts, some, limit, stops) -> Iterator[list[Generated]]:
        rows, length, _ = self._shape([prompts[n] for n in some], limit)
        heads = self._batch([prompts[n][:-1] for n in some], rows, length)
        last = np.zeros(rows, np.int32)
        last[: len(some)] = [prompts[n][-1] for n in some]
        real = np.arange(rows) < len(some)
        found = to_host(self._search({"params": params}, *heads, last, real, new_tokens=limit))
        for row, n in enumerate(some):
            best = zip(*(x[row] for x in found), strict=True)
            yield [
                self._finished(
                    Generated(ids[:length].tolist(), [float(log_prob)], False), prompts[n], stops
                )
                for ids, length, log_prob, score in best
                if np.isfinite(score)
            ]

    def _beams(self, variables, tokens, segments, last, real, *, new_tokens):
        self.compilations += 1
        length = tokens.shape[1] + new_tokens
        _, cache = self.model.apply(variables, tokens, segments, length, method="prefill")
        step = partial(self.model.apply, variables, method="step")
        return search(
            step, cache, last, self.config, eos_id=self.eos_id, pad_id=self.eos_id,
            max_new_tokens=new_tokens, real=real, before=_said(tokens, segments),
        )  # fmt: skip


def _said(tokens: Int[Array, "b t"], segments: Int[Array, "b t"]) -> Int[Array, "b t"]:
    """The batch's own tokens, and `NOTHING` where it is padded."""
    return jnp.where(segments > 0, tokens, NOTHING)


def _made(state: State, read: int, start, counts):
    """A chunk of ids and log-probabilities [B, CHUNK] from the `start`-th new token on, and how
    many tokens each text has made since it had made `counts`."""
    cut = lambda x, at: jax.lax.dynamic_slice_in_dim(x, at, CHUNK, axis=1)  # noqa: E731
    tokens, log_probs = cut(state.said, read + start), cut(state.kept.each, start)
    return tokens, log_probs, state.kept.lengths - counts


def _power(least: int, multiple: int) -> int:
    """The first of multiple, 2 * multiple, 4 * multiple, ... that is not below `least`."""
    size = multiple
    while size < least:
        size *= 2
    return size
