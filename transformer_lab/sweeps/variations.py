"""Named variations of a config, and functions that combine them into larger lists."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_lab.errors import LabError

# Flags of `train` that can vary as config keys do
FLAGS = ("config", "init_from", "init_pattern", "init_into")


class Variation(NamedTuple):
    """One run of an experiment: the row of the table that it belongs to, and what it changes.

    Keys of `changes` are dotted keys of the config, or one of `FLAGS`.
    """

    row: str
    changes: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the run and of its directory: the row, and the seed if it has one."""
        seed = f"seed={self.changes['seed']}" if "seed" in self.changes else ""
        return ",".join(part for part in (self.row, seed) if part) or "run"


def vary(key: str, values: Sequence[Any] | Mapping[str, Any]) -> list[Variation]:
    """One variation for each value, named by it (`dropout=0.1`), or by the keys of a mapping."""
    if isinstance(values, Mapping):
        return [Variation(name, {key: value}) for name, value in values.items()]
    last = key.split(".")[-1]
    return [Variation(f"{last}={value}", {key: value}) for value in values]


def grid(*lists: list[Variation]) -> list[Variation]:
    """Every combination of one variation from each list, the last list varying fastest.

    For example vary("lr", [1, 2]) and vary("b1", [0, 0.9]) give lr=1,b1=0 then lr=1,b1=0.9 then
    lr=2,b1=0 then lr=2,b1=0.9.
    """
    return [_joined(parts) for parts in itertools.product(*lists)]


def pair(*lists: list[Variation]) -> list[Variation]:
    """Combines the first variations of all lists, the second ones, and so on. Raises: LabError for
    lists of different lengths."""
    if len({len(variations) for variations in lists}) > 1:
        raise LabError(f"pair() of lists of {', '.join(str(len(x)) for x in lists)}: unequal")
    return [_joined(parts) for parts in zip(*lists, strict=True)]


def chain(*lists: list[Variation]) -> list[Variation]:
    """All variations of the first list, then those of the second, and so on."""
    return list(itertools.chain(*lists))


def seeds(
    variations: list[Variation], count: int, deciding: Collection[str] | None = None
) -> list[Variation]:
    """Each variation with the seeds 0 .. count - 1; in the table they form one row.

    With `deciding`, the names of rows on which conclusions rest, the others get the seed 0 alone,
    and that seed of all rows comes first.
    """
    numbers = [Variation("", {"seed": seed}) for seed in range(count)]
    if deciding is None:
        return grid(variations, numbers)
    decide = [variation for variation in variations if variation.row in deciding]
    return grid(variations, numbers[:1]) + grid(decide, numbers[1:])


def _joined(parts: Sequence[Variation]) -> Variation:
    changes: dict[str, Any] = {}
    for part in parts:
        if twice := changes.keys() & part.changes.keys():
            raise LabError(f"{min(twice)} is varied twice: by {', '.join(p.row for p in parts)}")
        changes |= part.changes
    return Variation(",".join(part.row for part in parts if part.row), changes)
