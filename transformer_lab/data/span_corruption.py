"""Span corruption: spans of a text give way to sentinels, and the target spells them out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32

from transformer_lab.errors import LabError

Ids = Int32[np.ndarray, "n"]


@dataclass(frozen=True)
class SpansConfig:
    """How much is hidden, and in how long spans; the defaults are those of Raffel 2020, 3.1.4."""

    rate: float = 0.15  # of the tokens
    mean_length: float = 3.0  # tokens of a span

    def __post_init__(self):
        if not 0 < self.rate < 1 or self.mean_length < 1:
            raise LabError(
                f"spans rate = {self.rate} must lie within 0 and 1, mean_length = "
                f"{self.mean_length} must be at least 1"
            )

    def counts(self, length: int) -> tuple[int, int]:
        """Hidden tokens and spans of a text of so many tokens."""
        hidden = min(max(round(length * self.rate), 1), max(length - 1, 1))
        spans = max(round(hidden / self.mean_length), 1)
        return hidden, min(spans, hidden, max(length - hidden, 1))

    def lengths(self, length: int) -> tuple[int, int]:
        """Tokens of input and target, each with its end token."""
        hidden, spans = self.counts(length)
        return length - hidden + spans + 1, hidden + spans + 1

    def raw_length(self, inputs: int, targets: int | None = None) -> int:
        """The longest text whose input, and target if that is given, are not longer than these."""
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
    """True at hidden tokens: kept and hidden runs take turns, a kept one first.

    All ways to divide the tokens among the runs are equally likely. A single token is hidden.
    """
    hidden, spans = config.counts(length)
    if length == hidden:
        return np.ones(length, bool)
    runs = np.stack([_divide(length - hidden, spans, rng), _divide(hidden, spans, rng)], axis=1)
    return np.repeat(np.arange(2 * spans) % 2 == 1, runs.ravel())


def _divide(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """`parts` whole numbers from 1 that make `total`."""
    cuts = np.sort(rng.permutation(total - 1)[: parts - 1]) + 1
    return np.diff([0, *cuts, total])


def corrupt(
    ids: Ids, hidden: Bool[np.ndarray, "n"], sentinels: Sequence[int], eos: int
) -> tuple[Int32[np.ndarray, "s"], Int32[np.ndarray, "t"]]:
    """Input and target: the i-th sentinel stands for the i-th span, and before its tokens.

    Raises LabError where there are fewer sentinels than spans.
    """
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
