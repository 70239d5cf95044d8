"""Decoding any number of source texts in a few fixed array shapes, each compiled once."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, Bool, Int, Key

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.loop import SearchResult, search
from transformer_lab.errors import LabError
from transformer_lab.terminal import Waiting

Batch = dict[str, Any]


class Hypothesis(NamedTuple):
    """One output text; `ids` has neither start token, end token nor padding."""

    ids: list[int]
    score: float  # log_prob / penalty(length)
    log_prob: float  # the sum over all generated tokens, the end token included


class Bucket(NamedTuple):
    """One compiled shape: the length of the source and the most new tokens, both in tokens."""

    source: int
    new_tokens: int


class SequenceDecoder:
    """Decodes sources with an encoder-decoder model; a result never depends on its batch mates.

    A source goes to the smallest bucket that holds it, which alone decides how far it is padded and
    how long its output may be; the last batch of a bucket is filled up with empty examples. So each
    bucket that occurs is compiled once, however many sources there are.

    The model has `config.max_length` and the methods `init_cache(source, mask, length)` and
    `step(tokens, cache)`. `place` puts a batch ({"source", "source_mask"}, numpy) on devices, for a
    model on a mesh; every process is given all sources and gets all results. Ids are taken as they
    are: if the model wants an end token after its source, the caller adds it. The random draws for
    a source (with a temperature) depend on the seed and that source alone.
    """

    def __init__(
        self,
        model: nn.Module,
        config: DecodeConfig,
        *,
        eos_id: int,
        pad_id: int,
        start_id: int,
        buckets: Sequence[int] | None = None,
        place: Callable[[Batch], Batch] | None = None,
    ):
        self.model, self.config = model, config
        self.eos_id, self.pad_id, self.start_id = eos_id, pad_id, start_id
        if config.stop:
            raise LabError("decode.stop is for continuing prompts: unset it")
        self.max_length = model.config.max_length
        self.shapes = self._make_shapes(buckets)
        self.compilations = 0  # traces so far: at most one a shape
        self._place = place or (lambda batch: jax.tree.map(jnp.asarray, batch))
        self._run = jax.jit(self._decode)

    def __call__(
        self, params: Any, sources: Sequence[Sequence[int]], seed: int = 0
    ) -> list[list[Hypothesis]]:
        """Each source's hypotheses, best first, in the order of the sources.

        An empty source gets one empty hypothesis. Raises: LabError for a source that does not fit,
        and for scores that are not finite.
        """
        for number, ids in enumerate(sources):
            if not self.fits(ids):
                raise LabError(
                    f"source {number} has {len(ids)} tokens, but the longest that decoding takes "
                    f"is {self.shapes[-1].source}: shorten it or split it"
                )
        found = [[Hypothesis([], 0.0, 0.0)] for _ in sources]
        with Waiting("writes outputs", len(sources)) as waiting:
            for numbers, result in self._results(params, sources, seed):
                waiting.done += len(numbers)
                for row, number in enumerate(numbers):
                    found[number] = self._hypotheses(result, row)
                    if not found[number]:
                        raise LabError(
                            f"the model gives source {number} no finite score: its weights or "
                            "its input hold NaN or infinity, or every token is banned"
                        )
        return found

    def fits(self, ids: Sequence[int]) -> bool:
        """Whether a source is short enough for the model and for the largest bucket."""
        return len(ids) <= self.shapes[-1].source

    def _results(
        self, params: Any, sources: Sequence[Sequence[int]], seed: int
    ) -> Iterator[tuple[list[int], SearchResult]]:
        """Each batch's sources (by number) and result, fetched while the next batch is computed."""
        before: tuple[list[int], Any] | None = None
        for bucket, numbers in self._batches(sources):
            some, rows = [sources[n] for n in numbers], self.config.batch_size
            source, mask = fill(some, rows, bucket.source)
            batch = self._place({"source": source, "source_mask": mask})
            keys = row_keys(some, [0] * len(some), seed, rows) if self.config.temperature else None
            now = numbers, self._run(params, batch["source"], batch["source_mask"], keys)
            if before is not None:
                yield before[0], to_host(before[1])
            before = now
        if before is not None:
            yield before[0], to_host(before[1])

    def _make_shapes(self, buckets: Sequence[int] | None) -> tuple[Bucket, ...]:
        if buckets is None:
            powers = [2**i for i in range(3, 31) if 2**i < self.max_length]
            buckets = [*powers, self.max_length]
        if not buckets or min(buckets) < 1 or max(buckets) > self.max_length:
            raise LabError(
                f"decoding buckets {list(buckets)} must be lengths from 1 to "
                f"model.max_length = {self.max_length}"
            )
        fixed = self.config.max_new_tokens
        if fixed > self.max_length:
            raise LabError(
                f"decode.max_new_tokens = {fixed} exceeds model.max_length = {self.max_length}"
            )
        limit = lambda source: fixed or min(2 * source + 10, self.max_length)  # noqa: E731
        return tuple(Bucket(source, limit(source)) for source in sorted(set(buckets)))

    def _batches(self, sources: Sequence[Sequence[int]]) -> Iterator[tuple[Bucket, list[int]]]:
        """Batches of one bucket, as numbers of sources; sources of similar length are together."""
        numbers = sorted(
            (n for n in range(len(sources)) if len(sources[n])), key=lambda n: len(sources[n])
        )
        shortest, rows = 0, self.config.batch_size
        for bucket in self.shapes:
            mine = [n for n in numbers if shortest < len(sources[n]) <= bucket.source]
            shortest = bucket.source
            for first in range(0, len(mine), rows):
                yield bucket, mine[first : first + rows]

    def _decode(
        self,
        params: Any,
        source: Int[Array, "b s"],
        source_mask: Bool[Array, "b s"],
        keys: Key[Array, "b"] | None,
    ) -> SearchResult:
        self.compilations += 1  # runs only while tracing
        new_tokens = next(s.new_tokens for s in self.shapes if s.source == source.shape[1])
        cache = self.model.apply(params, source, source_mask, new_tokens, method="init_cache")
        return search(
            lambda tokens, cache: self.model.apply(params, tokens, cache, method="step"),
            cache,
            jnp.full(source.shape[0], self.start_id, jnp.int32),
            self.config,
            eos_id=self.eos_id,
            pad_id=self.pad_id,
            max_new_tokens=new_tokens,
            real=source_mask.any(axis=1),
            keys=keys,
        )

    def _hypotheses(self, result: SearchResult, row: int) -> list[Hypothesis]:
        """The hypotheses of one source; fewer than asked for if the vocabulary allows no more."""
        found = []
        for tokens, length, log_prob, score in zip(*(x[row] for x in result), strict=True):
            if np.isfinite(score):
                ids = tokens[:length].tolist()
                ids = ids[:-1] if ids[-1] == self.eos_id else ids
                found.append(Hypothesis(ids, float(score), float(log_prob)))
        return found


def to_host(result: Any) -> Any:
    """A result as numpy arrays with all rows, also those that other processes hold."""
    if jax.process_count() == 1:
        return jax.device_get(result)
    return multihost_utils.process_allgather(result, tiled=True)


def fill(
    texts: Sequence[Sequence[int]], rows: int, length: int, left: bool = False
) -> tuple[Int[np.ndarray, "b t"], Bool[np.ndarray, "b t"]]:
    """Texts as one batch of ids, padded at the end (`left`: the beginning), and where it is real.

    Rows beyond the texts are empty. Nothing reads the padding, so its id, 0, is one that every
    vocabulary has. Texts (5, 6) and (7,) in length 3 give ids 5 6 0 / 7 0 0 and True True False /
    True False False.
    """
    ids, real = np.zeros((rows, length), np.int32), np.zeros((rows, length), bool)
    for row, text in enumerate(texts):
        where = slice(length - len(text), length) if left else slice(len(text))
        ids[row, where], real[row, where] = text, True
    return ids, real


def row_keys(
    texts: Sequence[Sequence[int]], numbers: Sequence[int], seed: int, rows: int
) -> Key[Array, "rows"]:
    """A random key for each text, from the text and its number alone, whatever its batch mates."""
    marks = np.zeros((rows, 3), np.uint32)
    for row, (text, number) in enumerate(zip(texts, numbers, strict=True)):
        marks[row] = marks_of(text, number, seed)
    return jax.vmap(row_key)(*jnp.asarray(marks.T))


def marks_of(text: Sequence[int], number: int, seed: int) -> tuple[np.uint32, ...]:
    """What the random key of a text is made of: the seed, the ids' checksum, the number."""
    crc = zlib.crc32(np.asarray(text, "<i4").tobytes())
    return np.uint32(seed), np.uint32(crc), np.uint32(number)


def row_key(seed: Array, crc: Array, number: Array) -> Key[Array, ""]:
    """The random key of one text, from its `marks_of`."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), crc), number)
