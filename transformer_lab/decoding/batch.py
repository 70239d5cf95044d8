"""Decoding any number of sources in a few fixed shapes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, Bool, Int

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.search import SearchResult, beam_search, greedy
from transformer_lab.errors import LabError

Batch = dict[str, Any]


class Hypothesis(NamedTuple):
    """One translation; `ids` has neither start token, end token nor padding."""

    ids: list[int]
    score: float  # log_prob / penalty(length)
    log_prob: float  # of all generated tokens, the end token too


class Shape(NamedTuple):
    """One compiled shape: rows, source tokens and the most generated tokens."""

    rows: int
    source: int
    new_tokens: int


class SequenceDecoder:
    """Decodes sources with an encoder-decoder model; a result never depends on its batch mates.

    A source goes to the smallest bucket that holds it, which alone decides how it is padded and how
    long its output may be; the last batch of a bucket is filled up with empty rows. So there is one
    compilation a bucket that occurs, and none that depends on how many sources there are.

    The model has `config.max_length` and the methods `init_cache(source, mask, length)` and
    `step(tokens, cache)`. `place` puts a batch ({"source", "source_mask"}, numpy) on devices, for a
    model on a mesh; every process is given all sources and gets all results. Ids are taken as they
    are: if the model wants an end token after its source, the caller puts it there.
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
        for name in ("temperature", "top_k", "top_p", "stop"):
            if getattr(config, name) != getattr(DecodeConfig, name):
                raise LabError(f"decode.{name} is for continuing prompts: unset it")
        self.max_length = model.config.max_length
        self.shapes = self._make_shapes(buckets)
        self.compilations = 0  # traces so far: at most one a shape
        self._place = place or (lambda batch: jax.tree.map(jnp.asarray, batch))
        self._run = jax.jit(self._decode)

    def __call__(self, params: Any, sources: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        """Each source's hypotheses, best first, in the order given; an empty source's is empty.

        Raises LabError for a source that does not fit and for scores that are not finite.
        """
        for number, ids in enumerate(sources):
            if not self.fits(ids):
                raise LabError(
                    f"source {number} has {len(ids)} tokens, but the longest that decoding takes "
                    f"is {self.shapes[-1].source}: shorten it or split it"
                )
        found = [[Hypothesis([], 0.0, 0.0)] for _ in sources]
        for numbers, result in self._results(params, sources):
            for row, number in enumerate(numbers):
                found[number] = self._hypotheses(result, row)
                if not found[number]:
                    raise LabError(
                        f"the model gives source {number} no finite score: its weights or "
                        "its input hold NaN or infinity, or every token is banned"
                    )
        return found

    def fits(self, ids: Sequence[int]) -> bool:
        """Whether a source is short enough for the model (and for the buckets)."""
        return len(ids) <= self.shapes[-1].source

    def describe(self) -> str:
        """The shapes that may be compiled, for a log."""
        shapes = ", ".join(f"{s.source} -> {s.new_tokens}" for s in self.shapes)
        search = f"beam {self.config.beam_size}" if self.config.beam_size > 1 else "greedy"
        return f"{search}, {self.config.batch_size} rows, source -> new tokens: {shapes}"

    def _results(
        self, params: Any, sources: Sequence[Sequence[int]]
    ) -> Iterator[tuple[list[int], SearchResult]]:
        """Each batch's sources (by number) and result, read while the next one is computed."""
        before = None
        for shape, numbers in self._batches(sources):
            batch = self._place(_pad([sources[n] for n in numbers], shape))
            now = numbers, self._run(params, batch["source"], batch["source_mask"])
            if before is not None:
                yield before[0], to_host(before[1])
            before = now
        if before is not None:
            yield before[0], to_host(before[1])

    def _make_shapes(self, buckets: Sequence[int] | None) -> tuple[Shape, ...]:
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
        rows = self.config.batch_size
        return tuple(Shape(rows, source, limit(source)) for source in sorted(set(buckets)))

    def _batches(self, sources: Sequence[Sequence[int]]) -> Iterator[tuple[Shape, list[int]]]:
        """Each bucket's sources (by number), those of similar length together."""
        numbers = sorted(
            (n for n in range(len(sources)) if len(sources[n])), key=lambda n: len(sources[n])
        )
        shortest = 0
        for shape in self.shapes:
            mine = [n for n in numbers if shortest < len(sources[n]) <= shape.source]
            shortest = shape.source
            for first in range(0, len(mine), shape.rows):
                yield shape, mine[first : first + shape.rows]

    def _decode(
        self, params: Any, source: Int[Array, "b s"], source_mask: Bool[Array, "b s"]
    ) -> SearchResult:
        self.compilations += 1  # runs only while tracing
        shape = next(s for s in self.shapes if s.source == source.shape[1])
        cache = self.model.apply(params, source, source_mask, shape.new_tokens, method="init_cache")
        search = beam_search if self.config.beam_size > 1 else greedy
        return search(
            lambda tokens, cache: self.model.apply(params, tokens, cache, method="step"),
            cache,
            jnp.full(source.shape[0], self.start_id, jnp.int32),
            self.config,
            eos_id=self.eos_id,
            pad_id=self.pad_id,
            max_new_tokens=shape.new_tokens,
            real=source_mask.any(axis=1),
        )

    def _hypotheses(self, result: SearchResult, row: int) -> list[Hypothesis]:
        """Those of one row: fewer than asked for if the vocabulary has no more."""
        best = zip(*(x[row] for x in result), strict=True)
        return [
            Hypothesis(self._strip(tokens[:length].tolist()), float(score), float(log_prob))
            for tokens, length, log_prob, score in best
            if np.isfinite(score)
        ]

    def _strip(self, ids: list[int]) -> list[int]:
        return ids[:-1] if ids[-1] == self.eos_id else ids


def to_host(result: Any) -> Any:
    """All rows in numpy, also those that other processes hold."""
    if jax.process_count() == 1:
        return jax.device_get(result)
    return multihost_utils.process_allgather(result, tiled=True)


def _pad(sources: list[Sequence[int]], shape: Shape) -> Batch:
    """The sources as one batch; rows beyond them are empty."""
    # Nothing reads a padded place, so its id may be anything that every vocabulary has.
    source = np.zeros((shape.rows, shape.source), np.int32)
    mask = np.zeros((shape.rows, shape.source), bool)
    for row, ids in enumerate(sources):
        source[row, : len(ids)] = ids
        mask[row, : len(ids)] = True
    return {"source": source, "source_mask": mask}
