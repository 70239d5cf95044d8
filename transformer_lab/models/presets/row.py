"""One row of a table of published sizes."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A model's settings and what its paper says of it; None where the paper is silent."""

    kind: str  # of the model family
    config: Any
    published: int | float | None  # parameters, as the paper rounds them
    source: str
    note: str = ""
    learning_rate: float | None = None  # the peak
    batch_tokens: int | None = None  # the last, where it grows
    trained_tokens: float | None = None
