"""Divides a source's examples into training, validation and test splits.

A source is a file of `data.sources`. `read` calls its function for the kind of examples that a
config asks for: `pairs`, `documents`, `labelled`, `images` and so on."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

from transformer_lab.errors import LabError, known
from transformer_lab.kinds import kind, kinds

SOURCES = "transformer_lab.data.sources"
SPLITS = ("train", "validation", "test")
Report = Counter[str]


class Item(NamedTuple):
    """An example that is not yet in a split.

    New splits divide no group (a film, a page, a document), and each stratum (a genre, a class)
    gives them the same share."""

    group: str
    row: Any
    stratum: str = ""


class Found(NamedTuple):
    """A source's result: items to train on, and those of the held-out splits that it has."""

    parts: dict[str, Sequence]
    licence: str


@dataclass(frozen=True)
class Splits:
    """The examples of each split.

    `report` counts the examples read, those dropped by reason, and each split; `labels` are the
    sorted classes or tags of all splits, or None."""

    train: Sequence
    validation: Sequence
    test: Sequence
    report: dict[str, int]
    licence: str
    labels: list[str] | None = None

    def fingerprint(self) -> str:
        """A SHA-256 of the content of all splits, in order, and of the labels."""
        content = [self.train, self.validation, self.test]
        content += [] if self.labels is None else [self.labels]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class SourceConfig:
    """Base of the sections `data`: a source (a file of `data.sources`) and checks of sizes."""

    KIND: ClassVar[str]  # the function of the source's file that is called

    def __post_init__(self):
        known("config.data.source = ", self.source, kinds(SOURCES, f"def {self.KIND}"))
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name.endswith("_share") and not 0 <= value < 1:
                raise LabError(f"config.data.{name} = {value} is no share: give 0 to below 1")
            if (name.startswith("max_") or name.endswith("_size")) and value < 0:
                raise LabError(f"config.data.{name} = {value} is negative: use 0")


def source_of(config: SourceConfig) -> ModuleType:
    """The file of the config's source. Raises: LabError if none has its name."""
    return kind(SOURCES, f"def {config.KIND}", "config.data.source", config.source)


def read(config: SourceConfig, *more: Any) -> Any:
    """The result of the config's source; a report among the arguments is counted up."""
    return getattr(source_of(config), config.KIND)(config, *more)


def read_items(config: SourceConfig) -> tuple[Found, Report]:
    """The items of the config's source, and counts of those read and those dropped by reason."""
    report = Report()
    found = read(config, report)
    count = sum(map(len, found.parts.values())) + report.total()
    return found, Report({"read": count} | report)


def fold(text: str) -> str:
    """The text with each run of white space replaced by one space, and none at its ends."""
    return " ".join(text.split())


def key(text: str) -> str:
    """The text by which duplicates are found: case and white space do not matter."""
    return " ".join(text.split()).casefold()


def shuffled(names: list[str], seed: int) -> list[str]:
    """Shuffles names so that their order depends on each name and the seed, not on other names."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}\0{name}".encode()).digest())


def finish(
    make: Callable[..., Splits],
    rows: dict[str, Sequence],
    report: Report,
    config: Any,
    limit: str,
    name: Callable[[Any], str],
    **more: Any,
) -> Splits:
    """The splits, with at most as many training rows as the config's key `limit` says (0: all).

    Which rows stay depends on their names: a larger limit only adds rows, and the held-out splits
    do not change. Of a lazy sequence the first rows stay."""
    train, most = rows["train"], getattr(config, limit)
    if most and len(train) > most:
        report[f"over_{limit}"] += len(train) - most
        if isinstance(train, list):
            some = set(shuffled(list(map(name, train)), config.split_seed)[:most])
            rows["train"] = [row for row in train if name(row) in some]
        else:
            rows["train"] = train[:most]
    report.update({split: len(rows[split]) for split in SPLITS})
    counts = {name: count for name, count in report.items() if count or name in SPLITS}
    return make(**{split: rows[split] for split in SPLITS}, report=counts, **more)


def split_by_share(
    config: Any,
    limit: str,
    name: Callable[[Any], str],
    limit_name: Callable[[Any], str],
    mixed: bool = True,
    labels_of: Callable[[list], list[str]] | None = None,
) -> Splits:
    """The splits of a config with `validation_share` and `test_share`, the same for every run.

    No training row is in another split or occurs twice; rows with the same `name` are duplicates.
    Splits that the source has are kept; a missing one gets its share of the training rows, shuffled
    if `mixed`."""
    found, report = read_items(config)
    parts = dict(found.parts)
    held = {name(item.row) for split in parts if split != "train" for item in parts[split]}
    parts["train"] = distinct(parts["train"], name, report, held)
    every = [item.row for part in parts.values() for item in part]
    labels = labels_of(every) if labels_of else None
    parts["train"] = hold_out(parts, config, name if mixed else None)
    rows = {split: [item.row for item in parts[split]] for split in SPLITS}
    more = {"licence": found.licence, "labels": labels}
    return finish(Splits, rows, report, config, limit, limit_name, **more)


def distinct(
    items: Iterable[Item],
    name: Callable[[Any], Any],
    report: Report,
    held: Set[Any] = frozenset(),
    longest: int = 0,
) -> list[Item]:
    """Items whose row has a name, each name once, and none of the names in `held`.

    Rows with a text of more than `longest` characters are dropped too (0: no limit). The report
    counts what is dropped by reason."""
    kept, seen = [], set()
    for item in items:
        mine = name(item.row)
        if not mine:
            report["empty"] += 1
        elif longest and max(map(len, item.row)) > longest:
            report["too_long"] += 1
        elif mine in held:
            report["in_another_split"] += 1
        elif mine in seen:
            report["duplicate"] += 1
        else:
            seen.add(mine)
            kept.append(item)
    return kept


def both_texts(pair: tuple[str, str]) -> tuple[str, ...]:
    """The name of a pair for `distinct`: the pair itself, or () if one side is blank."""
    return pair if all(map(str.strip, pair)) else ()


def hold_out(parts: dict[str, Sequence[Item]], config: Any, mixed_by: Callable | None) -> list:
    """The items left to train on; adds to `parts` the splits that it lacks.

    Whole groups are taken in the order of a hash of their names, equally from all strata, until
    there are enough rows; a share that is not 0 gets at least one. In the user's labelled files
    each stratum gives a split its first group before any gives a second, and keeps its last one."""
    strata: dict[str, dict[str, list[Item]]] = {}
    for item in parts["train"]:
        strata.setdefault(item.stratum, {}).setdefault(item.group, []).append(item)
    queue = sorted(
        ((rank + 0.5) / len(groups), stratum, group)
        for stratum, groups in strata.items()
        for rank, group in enumerate(shuffled(list(groups), config.split_seed))
    )
    total, whole, taken = len(parts["train"]), len(queue), set()
    for split, share in (("test", config.test_share), ("validation", config.validation_share)):
        if split in parts:
            continue
        size, rows = max(1, round(share * total)) if share else 0, []
        if config.source == "files" and mixed_by:
            queue = _each_first(queue)
        while queue and len(rows) < size:
            _, stratum, group = queue.pop(0)
            taken.add((stratum, group))
            rows += strata[stratum][group]
        if mixed_by:
            by_name = {mixed_by(item.row): item for item in rows}
            rows = [by_name[name] for name in shuffled(list(by_name), config.split_seed)]
        parts[split] = rows
    if not queue:
        raise LabError(
            f"{total} examples in {whole} groups are too few: config.data.validation_share = "
            f"{config.validation_share} and test_share = {config.test_share} leave none to train on"
        )
    return [item for item in parts["train"] if (item.stratum, item.group) not in taken]


def _each_first(queue: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """The queue with each stratum's first group in front, and the only groups of others last."""
    left, seen = Counter(stratum for _, stratum, _ in queue), set()
    order: list[list] = [[], [], []]
    for entry in sorted(queue):
        stratum = entry[1]
        order[2 if left[stratum] == 1 else stratum in seen].append(entry)
        seen.add(stratum)
    return [entry for part in order for entry in part]


def split_by_source(
    items: list[Item], validation_size: int, test_size: int, seed: int, report: Report
) -> dict[str, list[Item]]:
    """Splits pairs so that no source sentence is in two splits; train keeps the items' order.

    Groups are taken in the order of a hash of their names until enough sentences survive. A
    held-out sentence survives once, and only if no other split has its source (see `key`); the rest
    of its group is dropped, as it may not be trained on either. The held-out splits have exactly
    the sizes asked for, shuffled, so that their first pairs are a fair sample. Raises: LabError if
    nothing is left to train on."""
    keys = [key(item.row[0]) for item in items]
    members: dict[str, list[int]] = {}
    for i, item in enumerate(items):
        members.setdefault(item.group, []).append(i)
    outside = Counter(keys)  # pairs of each source that no held-out group contains so far
    groups = iter(shuffled(list(members), seed))
    test = _take(groups, test_size, members, keys, outside, report)
    validation = _take(groups, validation_size, members, keys, outside, report)
    train = [items[i] for i in sorted(i for group in groups for i in members[group])]
    if not train:
        raise LabError(
            f"{len(items)} pairs are too few: config.data.validation_size = {validation_size} and "
            f"config.data.test_size = {test_size} leave none to train on"
        )
    by_source = [{items[i].row[0]: items[i] for i in part} for part in (validation, test)]
    held = ([part[source] for source in shuffled(list(part), seed)] for part in by_source)
    return dict(zip(SPLITS, (train, *held), strict=True))


def _take(
    groups: Iterator[str],
    size: int,
    members: dict[str, list[int]],
    keys: list[str],
    outside: Counter[str],
    report: Report,
) -> list[int]:
    """Indices of the pairs of one held-out split, from as many groups as it needs."""
    kept: list[int] = []
    taken: list[int] = []
    while len(kept) < size:
        group = next(groups, None)
        if group is None:
            break
        for i in members[group]:
            taken.append(i)
            outside[keys[i]] -= 1
            # At 0 all pairs with this source are in held-out groups, and none was kept before.
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
    """Warnings about the splits before a run, one a line.

    They name a held-out split larger than the training set, with the key of `config.data` to
    change, and classes without examples in a split. `report` counts the examples of each split;
    `classes` are those found in each."""
    lines, train = [], report.get("train", 0)
    for split in ("validation", "test"):
        if 0 < train < report.get(split, 0):
            names = (f"{split}_{what}" for what in ("size", "origins"))
            key = next((name for name in names if hasattr(data, name)), f"{split}_share")
            lines.append(
                f"the {split} split has {report[split]:,} examples, more than the {train:,} to "
                f"train on: lower config.data.{key}, unless the split is your own"
            )
        total, asked = sum(report.get(s, 0) for s in SPLITS), getattr(data, f"{split}_size", 0)
        if getattr(data, "source", "") == "files" and 0 < total // 10 == report.get(split) < asked:
            key = f"config.data.{split}_size = {asked:,}"
            lines.append(f"{key} is over a tenth of your pairs: {total // 10:,} are held out")
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
