"""From the states of CTC to text: the likeliest alignment, or prefix beam search (Hannun 2014).

A text's probability is the sum over its alignments. The search keeps for each prefix of a text the
probabilities of alignments that end in the blank and of those that do not, state by state, and may
add the log-probability of a language model and a bonus for each token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, log1p
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_lab.errors import at_least, known

METHODS = "greedy", "beam", "joint", "attention"
NextLogProbs = Callable[[Sequence[int]], Float[np.ndarray, "v"]]  # log p(token | tokens before)


@dataclass(frozen=True)
class CTCConfig:
    """How a text is found: the config section `ctc`.

    greedy: the likeliest alignment; beam: the likeliest text; joint: of the beam's texts the one
    with the greatest sum of CTC's and the decoder's log-probabilities (Watanabe 2017, section 3.3,
    as rescoring); attention: the decoder alone, by the section `decode`."""

    method: str = "greedy"  # greedy | beam | joint | attention
    beam_size: int = 8  # prefixes that are kept
    prune: float = 10.0  # a state's tokens this many nats below its likeliest are not tried
    ngram_order: int = 0  # of a language model of the training texts' tokens; 0: none
    ngram_weight: float = 0.3  # factor of its log-probability
    length_bonus: float = 0.0  # nats for each token, against a language model's short texts
    weight: float = 0.3  # joint: CTC's share of the sum
    seconds: float = 15.0  # the longest part of a file that `transcribe` reads at once

    def __post_init__(self):
        known("config.ctc.method = ", self.method, METHODS)
        at_least(self, "ctc", 1, "beam_size")
        at_least(self, "ctc", 0, "prune", "ngram_order", "weight")
        at_least(self, "ctc", 0.1, "seconds")


class Reading(NamedTuple):
    """A text's token ids; `score` is what the search ranks by, `log_prob` CTC's part of it."""

    ids: tuple[int, ...]
    score: float
    log_prob: float


def collapsed(path: Int[np.ndarray, "s"], blank: int) -> list[int]:
    """The text of an alignment: repeats are removed, then blanks. 1 1 0 1 2 with blank 0: 1 1 2."""
    path = np.asarray(path)
    first = np.append(True, path[1:] != path[:-1])[: len(path)]
    return path[first & (path != blank)].tolist()


def greedy(log_probs: Float[np.ndarray, "s v"], blank: int) -> Reading:
    """The text of the likeliest alignment, and that alignment's log-probability."""
    best = float(log_probs.max(axis=1).sum()) if len(log_probs) else 0.0
    return Reading(tuple(collapsed(log_probs.argmax(axis=1), blank)), best, best)


def prefix_beam(
    log_probs: Float[np.ndarray, "s v"],
    blank: int,
    config: CTCConfig,
    language: NextLogProbs | None = None,
    eos_id: int = 0,
    banned: Sequence[int] = (),
) -> list[Reading]:
    """The texts that the search ends with, best first; their log-probabilities are sums over the
    alignments that it has kept, and all alignments if nothing was pruned.

    Args:
        language: the log-probabilities of all tokens after a text; it also has to end it, with
            `eos_id`.
        banned: tokens that no text holds, such as the end token.
    """
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -inf)}
    extra: dict[tuple[int, ...], float] = {(): 0.0}  # of language model and bonus, by prefix
    log_probs = np.array(log_probs, np.float64)
    log_probs[:, list(banned)] = -inf
    for row in log_probs:
        tried = np.flatnonzero(row >= row.max() - config.prune).tolist()
        tokens = [(token, float(row[token])) for token in tried if token != blank]
        ending: dict[tuple[int, ...], float] = {}  # in the blank
        others: dict[tuple[int, ...], float] = {}
        for prefix, (in_blank, in_token) in beams.items():
            both, last = _plus(in_blank, in_token), prefix[-1] if prefix else None
            ending[prefix] = _plus(ending.get(prefix, -inf), both + float(row[blank]))
            if prefix:
                again = in_token + float(row[last])
                others[prefix] = _plus(others.get(prefix, -inf), again)
            for token, value in tokens:
                value += in_blank if token == last else both
                longer = (*prefix, token)
                others[longer] = _plus(others.get(longer, -inf), value)
        new = {p: (ending.get(p, -inf), others.get(p, -inf)) for p in {**ending, **others}}
        new = {p: both for p, both in new.items() if max(both) > -inf}
        for prefix in new:
            if prefix not in extra:
                said = float(language(prefix[:-1])[prefix[-1]]) if language else 0.0
                extra[prefix] = (
                    extra[prefix[:-1]] + config.ngram_weight * said + config.length_bonus
                )
        rank = lambda p: (-_plus(*new[p]) - extra[p], p)  # noqa: E731, B023
        beams = {p: new[p] for p in sorted(new, key=rank)[: config.beam_size]}
    found = []
    for prefix, (in_blank, in_token) in beams.items():
        ended = config.ngram_weight * float(language(prefix)[eos_id]) if language else 0.0
        log_prob = _plus(in_blank, in_token)
        found.append(Reading(prefix, log_prob + extra[prefix] + ended, log_prob))
    return sorted(found, key=lambda r: (-r.score, r.ids))


def _plus(a: float, b: float) -> float:
    """log(exp(a) + exp(b)), also of minus infinity."""
    if a < b:
        a, b = b, a
    return a if b == -inf else a + log1p(exp(b - a))
