"""One entry of a table of published sizes, and a function that makes entries from a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A model's settings, and what its paper states of it; None where the paper is silent."""

    kind: str  # the model family
    config: Any
    published: int | float | None  # parameters, as the paper rounds them
    source: str
    note: str = ""
    learning_rate: float | None = None  # the peak of the schedule
    batch_tokens: int | None = None  # tokens in a batch; the final number where it grows
    trained_tokens: float | None = None
    # Keys of config.optimizer in which the paper differs from AdamW with 2,000 steps of warm-up and
    # a cosine to a tenth
    optimizer: dict[str, Any] = field(default_factory=dict)
    # Where rate, batch, tokens and optimizer stand, if elsewhere than in `source`
    training_source: str = ""


def presets(
    kind: str,
    base: Any,
    names: Sequence[str],
    source: str,
    lines: dict[str, tuple],
    more: Sequence[str] = (),
    **common: Any,
) -> dict[str, Preset]:
    """Presets from a table: each line has the values of the settings `names`, the published number
    of parameters, and values for as many of the fields `more` as it likes.

    `common` are fields that all presets share.
    """
    found = {}
    for name, line in lines.items():
        sizes, published, rest = line[: len(names)], line[len(names)], line[len(names) + 1 :]
        config = replace(base, **dict(zip(names, sizes, strict=True)))
        fields = common | dict(zip(more, rest, strict=False))
        found[name] = Preset(kind, config, published, source, **fields)
    return found
