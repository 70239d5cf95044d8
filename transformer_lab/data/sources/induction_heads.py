"""Induction heads (Gu 2023, section 4.1.2; Olsson 2022): recall what followed a special token.

All tokens are random except for the special one, the last of the vocabulary: it occurs once among
them and again at the end, where the target is the token that followed it. With 5 as the special
token:

    tokens   1 3 0 5 2 4 0 0 3 5
    targets  . . . . . . . . . 2
"""

from typing import Any

import numpy as np

from transformer_lab.data.sequences import Sequences, at_end
from transformer_lab.errors import LabError

VOCABULARY = 16


def sequences(
    config: Any, split: str, length: int, size: int, draw: np.random.Generator
) -> Sequences:
    """`size` sequences of `length` tokens, with one target each at the end."""
    special = (config.vocabulary or VOCABULARY) - 1
    if length < 3 or special < 1:
        raise LabError(f"config.data.length = {length} must be 3 or more, the vocabulary 2 or more")
    tokens, rows = draw.integers(special, size=(size, length)), np.arange(size)
    first = draw.integers(length - 2, size=size)
    tokens[rows, first] = tokens[:, -1] = special
    return at_end(tokens, tokens[rows, first + 1][:, None])
