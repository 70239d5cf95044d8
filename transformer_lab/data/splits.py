"""Hold out groups of pairs so that no source sentence stands in two splits."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Set

from transformer_lab.data.pairs import Report, Row, key
from transformer_lab.errors import LabError


def shuffled(names: list[str], seed: int) -> list[str]:
    """The names in an order that depends on each name and the seed, not on the other names."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}\0{name}".encode()).digest())


def hold_out(
    rows: list[Row], validation_size: int, test_size: int, seed: int, report: Report
) -> tuple[list[Row], list[Row], list[Row]]:
    """Train, validation and test rows; train in the order of `rows`.

    Groups are taken by a hash of their name until enough sentences survive. A held-out sentence
    survives if no other split holds its source (see `key`), and once only; the rest of its group
    is dropped, since it may not be trained on either. The held-out splits get exactly the sizes
    asked for, shuffled, so that the first of them are a fair sample. Raises LabError when nothing
    would be left to train on.
    """
    keys = [key(row.source) for row in rows]
    members: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        members.setdefault(row.group, []).append(i)
    outside = Counter(keys)  # rows of each source that no held-out group contains so far
    groups = iter(shuffled(list(members), seed))
    test = _take(groups, test_size, members, keys, outside, report)
    validation = _take(groups, validation_size, members, keys, outside, report)
    left = sorted(i for group in groups for i in members[group])
    if not left:
        raise LabError(
            f"{len(rows)} pairs are too few: config.data.validation_size = {validation_size} and "
            f"config.data.test_size = {test_size} leave none to train on"
        )
    held = [
        [by_source[source] for source in shuffled(list(by_source), seed)]
        for by_source in ({rows[i].source: rows[i] for i in part} for part in (validation, test))
    ]
    return [rows[i] for i in left], *held


def _take(
    groups: Iterator[str],
    size: int,
    members: dict[str, list[int]],
    keys: list[str],
    outside: Counter[str],
    report: Report,
) -> list[int]:
    """Row numbers of one held-out split, from as many groups as it needs."""
    kept: list[int] = []
    taken: list[int] = []
    while len(kept) < size:
        group = next(groups, None)
        if group is None:
            break
        for i in members[group]:
            taken.append(i)
            outside[keys[i]] -= 1
            # At zero, every row with this source is in a held-out group and none was kept yet.
            if not outside[keys[i]]:
                kept.append(i)
    elsewhere = sum(outside[keys[i]] > 0 for i in taken)
    report["source_in_another_split"] += elsewhere
    report["source_held_out_already"] += len(taken) - elsewhere - len(kept)
    report["group_left_over"] += len(kept) - len(kept[:size])
    return kept[:size]


def remarks(
    report: Mapping[str, int], data: object, classes: Mapping[str, Set[str]] | None = None
) -> list[str]:
    """What is worth knowing of the splits before a run, a line each.

    That is a held-out split that is larger than the training set, with the key of `config.data`
    that mends it, and the classes of which a split has no example. `report` counts the examples of
    each split, `classes` are those that stand in each.
    """
    lines, train = [], report.get("train", 0)
    for split in ("validation", "test"):
        if 0 < train < report.get(split, 0):
            key = f"{split}_size" if hasattr(data, f"{split}_size") else f"{split}_share"
            lines.append(
                f"the {split} split has {report[split]:,} examples, more than the {train:,} to "
                f"train on: lower config.data.{key}, unless the split is your own"
            )
    every = set().union(*(classes or {}).values())
    for split, some in (classes or {}).items():
        if lacking := sorted(every - some) if report.get(split) and some else []:
            names = ", ".join(lacking[:8]) + ", ..." * (len(lacking) > 8)
            lines.append(
                f"the {split} split has no example of {len(lacking)} of {len(every)} classes: "
                + names
                + "; the model cannot learn what it never sees" * (split == "train")
            )
    return lines


def check_shares(validation: float, test: float) -> None:
    """Refuses what is no share of a set to hold out."""
    for name, share in (("validation_share", validation), ("test_share", test)):
        if not 0 <= share < 1:
            raise LabError(f"config.data.{name} = {share} is no share: give 0 to below 1")
