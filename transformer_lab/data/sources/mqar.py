"""Multi-query associative recall (Arora 2023, section 4.1): recall the value of a key.

A sequence begins with pairs of a key (from the lower half of the vocabulary, but not 0) and a value
(from the upper half), all different. Each key occurs once more after them, and there its value is
the target. Queries are at even distances after the pairs: the g-th such position is chosen with
probability proportional to g^(gap_power - 1), so that most are near, like repeated words in a text.
All other positions hold random tokens. With a vocabulary of 12 and zeros instead of them (appendix
A):

    tokens   2 8 4 7 0 0 4 0 0 0 0 0 2 0
    targets  . . . . . . 7 . . . . . 8 .
"""

from typing import Any

import numpy as np

from transformer_lab.data.sequences import Sequences, distinct
from transformer_lab.errors import LabError

VOCABULARY = 8192


def sequences(
    config: Any, split: str, length: int, size: int, draw: np.random.Generator
) -> Sequences:
    """`size` sequences of `length` tokens, each with `pairs` targets."""
    vocabulary, pairs = config.vocabulary or VOCABULARY, config.pairs
    places = (length - 2 * pairs) // 2
    if places < pairs:
        raise LabError(
            f"{pairs} pairs and as many queries need {4 * pairs} tokens: raise config.data.length "
            f"= {length}, or lower config.data.pairs"
        )
    keys = distinct(draw, 1, vocabulary // 2, (size, pairs))
    values = distinct(draw, vocabulary // 2, vocabulary, (size, pairs))
    tokens = draw.integers(vocabulary, size=(size, length))
    tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
    # The largest log-weights plus Gumbel noise are samples without replacement (Vieira 2014).
    chances = (config.gap_power - 1) * np.log(np.arange(1, places + 1))
    noisy = chances + draw.gumbel(size=(size, places))
    queries = 2 * pairs + 2 * np.argsort(-noisy, axis=1)[:, :pairs]
    targets, mask = np.zeros_like(tokens), np.zeros(tokens.shape, bool)
    np.put_along_axis(tokens, queries, keys, axis=1)
    np.put_along_axis(targets, queries, values, axis=1)
    np.put_along_axis(mask, queries, True, axis=1)
    return Sequences(tokens, targets, mask)
