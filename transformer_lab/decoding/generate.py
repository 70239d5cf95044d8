"""Continuing prompts: prefill in one pass, then one token after the other over a static cache."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from transformer_lab.decoding.batch import to_host
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.processors import (
    NOTHING,
    log_prob_of,
    one_end,
    prepare,
    remembers,
)
from transformer_lab.decoding.search import beam_search
from transformer_lab.errors import LabError
from transformer_lab.ops.sampling import sample

CHUNK = 32  # tokens that one call makes at most, before the host looks at them
ROOM = 64  # a cache's length is a multiple of this
Batch = dict[str, Any]
Stops = Callable[[Sequence[int], list[int]], bool]  # of a prompt, and what follows it


class Generated(NamedTuple):
    """One continuation, without the end token; log-probabilities are of the model's own
    distribution (whatever the temperature), the end token's last if there is one."""

    ids: list[int]
    log_probs: list[float]
    ended: bool  # by the end token or a stop string, not by its length


class Shape(NamedTuple):
    """One compiled shape: rows, prompt tokens and places in the cache."""

    rows: int
    prompt: int
    cache: int


class Generator:
    """Continues prompts with a decoder-only model; a result never depends on its batch mates.

    Prompts stand on the right of their bucket, so that all rows go on at one place; rows and
    lengths come in few sizes, each compiled once. A row's randomness is that of (seed, prompt,
    number of the sample). The model has `config.max_length`, `prefill` and `step`, as
    `models.decoder`. Prompt and new tokens together never exceed max_length: LabError.
    `place` puts a batch ({"tokens", "segments"}, numpy) on devices.
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
        first = () if config.first_token is None else (config.first_token,)
        for token in (eos_id, *first, *config.banned_tokens, *config.end_tokens):
            if token >= model.config.vocab_size:
                size = model.config.vocab_size
                raise LabError(f"token {token} is outside the model's vocabulary of {size}")
        self.max_length, self.rows_multiple = model.config.max_length, rows_multiple
        self.shrinks = False  # whether decode.max_new_tokens gives way where a prompt is long
        self.compilations = 0  # traces so far: at most two a shape
        self._place = place or (lambda batch: jax.tree.map(jnp.asarray, batch))
        self._prefill = jax.jit(self._first, static_argnames="length")
        self._continue = jax.jit(self._more, donate_argnums=1)
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
        """(row, new ids, their log-probabilities) as they come, `chunk` tokens at a time.

        One batch; `numbers` tell the samples of one prompt apart. An end token comes too.
        """
        limits = [self.new_tokens(prompt) for prompt in prompts]
        shape = self._shape(prompts, max(limits, default=1))
        numbers = numbers or [0] * len(prompts)
        keys = row_keys(prompts, numbers, seed, shape.rows)
        batch = self._place(pad_left(prompts, shape))
        wanted = np.zeros(shape.rows, np.int32)
        wanted[: len(limits)] = limits
        controls = self._controls()
        state, out = self._prefill(
            {"params": params}, batch["tokens"], batch["segments"], keys, wanted, controls,
            length=shape.cache,
        )  # fmt: skip
        made: list[list[int]] = [[] for _ in prompts]
        over = np.zeros(shape.rows, bool)
        over[len(prompts) :] = True
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
                {"params": params}, state, jnp.asarray(over), controls, jnp.int32(chunk)
            )

    def new_tokens(self, prompt: Sequence[int]) -> int:
        """How many tokens follow a prompt at most; LabError if they do not fit the context."""
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

    def _shape(self, prompts, new_tokens: int) -> Shape:
        rows = _power(len(prompts), self.rows_multiple)
        prompt = min(_power(max(map(len, prompts)), 8), self.max_length)
        return Shape(rows, prompt, -(-(prompt + new_tokens) // ROOM) * ROOM)

    def _controls(self) -> tuple[Array, ...]:
        config = self.config
        values = config.temperature or 1.0, min(config.top_k, 2**31 - 1), config.top_p
        kinds = jnp.float32, jnp.int32, jnp.float32
        return tuple(kind(value) for kind, value in zip(kinds, values, strict=True))

    # What is compiled.

    def _choose(self, logits, state, place, controls):
        """The tokens [b] at a place, and their log-probabilities."""
        config, at_limit = self.config, place + 1 >= state["wanted"]
        logits = logits.astype(jnp.float32)
        prepared = prepare(
            logits, config, self.eos_id, state["said"], state["before"], place, at_limit
        )
        if config.temperature:
            here = jax.vmap(jax.random.fold_in, (0, None))(state["keys"], place)
            restricted = bool(config.top_k or config.top_p < 1)
            tokens = sample(prepared[0], here, *controls, restricted=restricted)
        else:
            tokens = jnp.argmax(prepared[0], axis=-1).astype(jnp.int32)
        return one_end(tokens, config, self.eos_id), log_prob_of(tokens, *prepared)

    def _remember(self, said, place, chosen):
        if not remembers(self.config):
            return said
        return said.at[:, place].set(chosen, mode="drop")

    def _first(self, variables, tokens, segments, keys, wanted, controls, *, length):
        self.compilations += 1  # runs only while tracing
        logits, cache = self.model.apply(variables, tokens, segments, length, method="prefill")
        rows, before = tokens.shape
        said = _said(tokens, segments)
        said = jnp.pad(said, ((0, 0), (0, length - before)), constant_values=NOTHING)
        state = {
            "cache": cache,
            "keys": keys,
            "wanted": wanted,
            "said": said if remembers(self.config) else jnp.zeros((rows, 0), jnp.int32),
            "before": jnp.int32(before),
        }
        chosen, log_probs = self._choose(logits[:, -1], state, 0, controls)
        state |= {"last": chosen, "place": jnp.ones((), jnp.int32)}
        state["said"] = self._remember(state["said"], before, chosen)
        return state, (chosen[:, None], log_probs[:, None], (wanted > 0).astype(jnp.int32))

    def _more(self, variables, state, over, controls, chunk):
        self.compilations += 1
        rows = len(over)

        def body(carry):
            i, place, cache, last, said, done, out, log_probs, counts = carry
            logits, cache = self.model.apply(variables, last[:, None], cache, method="step")
            now = {**state, "said": said}
            chosen, log_prob = self._choose(logits[:, 0], now, place, controls)
            said = self._remember(said, state["before"] + place, chosen)
            counts = counts + ~done
            out, log_probs = out.at[:, i].set(chosen), log_probs.at[:, i].set(log_prob)
            done = done | (chosen == self.eos_id) | (place + 1 >= state["wanted"])
            return i + 1, place + 1, cache, chosen, said, done, out, log_probs, counts

        going = lambda c: (c[0] < chunk) & ~c[5].all()  # noqa: E731
        done = over | (state["place"] >= state["wanted"])
        start = (
            jnp.zeros((), jnp.int32), state["place"], state["cache"], state["last"],
            state["said"], done,
            jnp.zeros((rows, CHUNK), jnp.int32), jnp.zeros((rows, CHUNK)),
            jnp.zeros(rows, jnp.int32),
        )  # fmt: skip
        _, place, cache, last, said, _, *out = jax.lax.while_loop(going, body, start)
        state = {**state, "cache": cache, "last": last, "said": said, "place": place}
        return state, tuple(out)

    # Beam search.

    def _beam_search(self, params, prompts, limits, stops) -> list[list[Generated]]:
        if self.model.config.mask == "prefix":
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
        heads = [prompts[n][:-1] for n in some]
        shape = self._shape([prompts[n] for n in some], limit)
        batch = self._place(pad_left(heads, shape))
        last = np.zeros(shape.rows, np.int32)
        last[: len(some)] = [prompts[n][-1] for n in some]
        real = np.arange(shape.rows) < len(some)
        found = to_host(
            self._search(
                {"params": params}, batch["tokens"], batch["segments"], last, real,
                new_tokens=limit,
            )
        )  # fmt: skip
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
        return beam_search(
            step, cache, last, self.config, eos_id=self.eos_id, pad_id=self.eos_id,
            max_new_tokens=new_tokens, real=real, before=_said(tokens, segments),
        )  # fmt: skip


def _said(tokens: Int[Array, "b t"], segments: Int[Array, "b t"]) -> Int[Array, "b t"]:
    """A batch's own tokens, and `NOTHING` where its rows are filled up."""
    return jnp.where(segments > 0, tokens, NOTHING)


def row_keys(
    prompts: Sequence[Sequence[int]], numbers: Sequence[int], seed: int, rows: int
) -> Key[Array, "rows"]:
    """A key a row, of its prompt and its number alone."""
    marks = np.zeros((rows, 2), np.uint32)
    for row, (prompt, number) in enumerate(zip(prompts, numbers, strict=True)):
        marks[row] = zlib.crc32(np.asarray(prompt, "<i4").tobytes()), number
    fold = jax.vmap(lambda m: jax.random.fold_in(jax.random.fold_in(base, m[0]), m[1]))
    base = jax.random.key(seed)
    return fold(jnp.asarray(marks))


def pad_left(prompts: Sequence[Sequence[int]], shape: Shape) -> dict[str, Int[np.ndarray, "b t"]]:
    """Prompts as one batch: the last token of each in the last column, segment 0 before it."""
    tokens = np.zeros((shape.rows, shape.prompt), np.int32)
    segments = np.zeros((shape.rows, shape.prompt), np.int32)
    for row, ids in enumerate(prompts):
        if len(ids):
            tokens[row, -len(ids) :] = ids
            segments[row, -len(ids) :] = 1
    return {"tokens": tokens, "segments": segments}


def _power(least: int, multiple: int) -> int:
    """The first of multiple, 2 * multiple, 4 * multiple, ... that is not below `least`."""
    size = multiple
    while size < least:
        size *= 2
    return size
