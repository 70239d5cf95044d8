"""Span corruption (T5): sentinels replace spans of a text, and the target spells them out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32

from transformer_lab.errors import LabError

Ids = Int32[np.ndarray, "n"]


@dataclass(frozen=True)
class SpansConfig:
    """How much is hidden, in spans of which length; the defaults are T5's (Raffel 2020, 3.1.4)."""

    rate: float = 0.15  # share of tokens that are hidden
    mean_length: float = 3.0  # mean number of tokens in a span

    def __post_init__(self):
        if not 0 < self.rate < 1 or self.mean_length < 1:
            raise LabError(
                f"spans rate = {self.rate} must lie within 0 and 1, mean_length = "
                f"{self.mean_length} must be at least 1"
            )

    def counts(self, length: int) -> tuple[int, int]:
        """The number of hidden tokens and of spans in a text of `length` tokens."""
        hidden = min(max(round(length * self.rate), 1), max(length - 1, 1))
        spans = max(round(hidden / self.mean_length), 1)
        return hidden, min(spans, hidden, max(length - hidden, 1))

    def lengths(self, length: int) -> tuple[int, int]:
        """The number of tokens in input and target, each with its sentinels and end token."""
        hidden, spans = self.counts(length)
        return length - hidden + spans + 1, hidden + spans + 1

    def raw_length(self, inputs: int, targets: int | None = None) -> int:
        """The longest text whose input, and target if given, do not exceed these lengths."""
        length = 0
        while all(
            most is None or found <= most
            for found, most in zip(self.lengths(length + 1), (inputs, targets), strict=True)
        ):
            length += 1
        if not length:
            raise LabError(f"an input of {inputs} tokens has no room for a span and the end token")
        return length


def span_mask(
    length: int, config: SpansConfig, rng: np.random.Generator
) -> Bool[np.ndarray, "length"]:
    """True at hidden tokens: kept and hidden runs alternate, beginning with a kept one.

    All divisions of the tokens into the runs are equally likely. A single token is hidden."""
    hidden, spans = config.counts(length)
    if length == hidden:
        return np.ones(length, bool)
    runs = np.stack([_divide(length - hidden, spans, rng), _divide(hidden, spans, rng)], axis=1)
    return np.repeat(np.arange(2 * spans) % 2 == 1, runs.ravel())


def _divide(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """`parts` random whole numbers of at least 1 whose sum is `total`."""
    cuts = np.sort(rng.permutation(total - 1)[: parts - 1]) + 1
    return np.diff([0, *cuts, total])


def corrupt(
    ids: Ids, hidden: Bool[np.ndarray, "n"], sentinels: Sequence[int], eos: int
) -> tuple[Int32[np.ndarray, "s"], Int32[np.ndarray, "t"]]:
    """Input and target: the i-th sentinel replaces the i-th span, and precedes it in the target.

    "a b c d" with "b c" hidden gives the input "a S0 d end" and the target "S0 b c end". Raises:
    LabError if there are fewer sentinels than spans."""
    begins = hidden & ~np.pad(hidden[:-1], (1, 0))
    spans = int(begins.sum())
    if spans > len(sentinels):
        raise LabError(
            f"{spans} spans need as many sentinels, the tokenizer has {len(sentinels)}: "
            f"set tokenizer.extra_ids to at least {spans}"
        )
    marks, places = np.asarray(sentinels[:spans], np.int32), np.flatnonzero(begins)
    whole = np.insert(ids.astype(np.int32), places, marks)
    inside = np.insert(hidden, places, True)
    is_mark = np.zeros(len(whole), bool)
    is_mark[places + np.arange(spans)] = True
    end = np.asarray([eos], np.int32)
    inputs, targets = whole[~inside | is_mark], whole[inside]
    return np.concatenate([inputs, end]), np.concatenate([targets, end])
