"""Selective copying (Gu 2023, section 3.1 and appendix E.1): repeat the tokens among noise.

Token 0 is noise, the last one asks for an answer, those between are content. `remembered` content
tokens are at random positions of the noise; after it, as many questions ask for them in order. With
3 tokens to remember out of 2, 3 and 4:

    tokens   0 3 0 0 2 4 0 5 5 5
    targets  . . . . . . . 3 2 4

The length includes the questions."""

from typing import Any

import numpy as np

from transformer_lab.data.sequences import Sequences, at_end
from transformer_lab.errors import LabError

VOCABULARY = 16


def sequences(
    config: Any, split: str, length: int, size: int, draw: np.random.Generator
) -> Sequences:
    """`size` sequences of `length` tokens, each with `remembered` targets at the end."""
    ask, count = (config.vocabulary or VOCABULARY) - 1, config.remembered
    noise = length - count
    if noise < count or ask < 2:
        raise LabError(
            f"config.data.remembered = {count} tokens need a config.data.length of {2 * count} or "
            f"more and a vocabulary of 3, here {length} and {ask + 1}"
        )
    content = draw.integers(1, ask, (size, count))
    places = np.sort(np.argsort(draw.random((size, noise)), axis=1)[:, :count], axis=1)
    tokens = np.full((size, length), ask)
    tokens[:, :noise] = 0
    np.put_along_axis(tokens, places, content, axis=1)
    return at_end(tokens, content)
