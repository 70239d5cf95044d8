"""What is to be prepared: a config's own data, in memory or in files that are larger than memory.

Files are read twice: once to choose what is held out and what the tokenizer is trained on
(`data.scanning`), and once to write tokens, a shard for each part. What `load_pairs`,
`load_documents` and `load_tasks` have in memory is taken as it is, with their splits.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from transformer_lab import text
from transformer_lab.data import documents, parallel, text_tasks
from transformer_lab.data.formats.lines import LICENCE
from transformer_lab.data.formats.records import Part, Row, find, parts_of, read
from transformer_lab.data.scanning import kept, scan
from transformer_lab.data.splits import SPLITS
from transformer_lab.errors import LabError

SHARD = 64_000_000  # bytes of raw files that make a shard
ROWS = 100_000  # rows in memory that make a shard
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to prepare, and how. `given` is a tokenizer to use; without it, one is trained on a
    sample of at most about `sample` characters of the training rows."""

    task: str
    data: Any  # PairsConfig, DocumentsConfig or TextTasksConfig
    tokenizer: text.TokenizerConfig
    given: text.Tokenizer | None = None
    sample: int = 20_000_000
    workers: int = 1
    shard: int = SHARD

    @property
    def kind(self) -> str:
        return "documents" if isinstance(self.data, documents.DocumentsConfig) else "pairs"

    @property
    def names(self) -> Row:
        """The languages of pairs."""
        return self.data.sides() if isinstance(self.data, parallel.PairsConfig) else ()

    def asked(self) -> dict[str, Any]:
        """All that decides the content of the directory, save the source's own content."""
        tokenizer = self.given.config if self.given else self.tokenizer
        given = self.given.fingerprint() if self.given else None
        asked = {"data": asdict(self.data), "tokenizer": asdict(tokenizer), "given": given}
        return json.loads(json.dumps({**asked, "sample": self.sample, "shard": self.shard}))


@dataclass(frozen=True)
class Content:
    """Training rows, shard by shard, of each part of a set, and what else is known of the set.

    Of files, which have no other parts than "", what only reading them tells is empty at first.
    """

    train: dict[str, list[Part | Sequence[Row]]]
    files: list[list[Any]]  # name and bytes of each; none: all is in memory
    held: dict[str, dict[str, list[Row]]]  # split, part
    report: dict[str, int]
    licence: str
    fingerprint: str = ""
    sample: Iterable[Row] = ()


def find_content(plan: Plan) -> Content:
    """What the config names. Files are listed, not read."""
    source = getattr(plan.data, "source", "shards")
    if source == "shards" and plan.data.path:
        raise LabError("the config reads a prepared directory: name the source of the data itself")
    paths = find(plan.data.path, plan.kind) if source == "files" and plan.data.path else None
    if paths is None:
        return _in_memory(plan)
    if getattr(plan.data, "max_pairs", 0) or getattr(plan.data, "max_documents", 0):
        raise LabError("config.data: a limit of the training set does not go with files: unset it")
    files = [[str(f), f.stat().st_size] for some in paths.values() for f in some]
    train = {"": [part for file in paths["train"] for part in parts_of(file, plan.shard)]}
    own = {split: {"": _whole(plan, paths[split])} for split in SPLITS[1:] if split in paths}
    return Content(train, files, own, {}, LICENCE)


def _whole(plan: Plan, files: list[Path]) -> list[Row]:
    parts = (part for file in files for part in parts_of(file, plan.shard))
    rows = (row for part in parts for row in read(part, plan.kind, plan.names))
    return list(kept(rows, 0, Counter()))


def scanned(plan: Plan, content: Content, say: Say) -> Content:
    """The content of files after a first reading."""
    own = {split: rows[""] for split, rows in content.held.items()}
    found = scan(content.train[""], plan, own, say)
    held = {split: {"": rows} for split, rows in found.held.items()}
    return replace(content, held=held, fingerprint=found.digest, sample=found.sample)


def _in_memory(plan: Plan) -> Content:
    """What the task itself would read."""
    if plan.kind == "documents":
        found = documents.load_documents(plan.data)
        parts = {"": {split: [(t,) for t in getattr(found, split)] for split in SPLITS}}
        splits = [found]
    else:
        if isinstance(plan.data, parallel.PairsConfig):
            sets = {"": parallel.load_pairs(plan.data)}
        else:
            sets = text_tasks.load_tasks(plan.data)
        if text_tasks.SPANS in sets:
            raise LabError(
                f'the task "{text_tasks.SPANS}" hides other words each epoch and cannot be '
                "prepared: leave it out of config.data.tasks"
            )
        parts = {name: {s: getattr(found, s) for s in SPLITS} for name, found in sets.items()}
        splits = list(sets.values())
    report = sum((Counter(found.report) for found in splits), Counter())
    train = {name: rows["train"] for name, rows in parts.items()}
    sample = _spaced(list(train.values()), plan.sample)
    if plan.kind == "documents":  # neighbours in the stream are of different places in the source
        order = np.random.default_rng(plan.data.split_seed).permutation(len(train[""]))
        train = {"": [train[""][i] for i in order]}
    return Content(
        {name: _slices(rows) for name, rows in train.items()},
        [],
        {s: {name: list(rows[s]) for name, rows in parts.items()} for s in SPLITS[1:]},
        {name: count for name, count in report.items() if name not in SPLITS},
        "; ".join(dict.fromkeys(found.licence for found in splits)),
        " ".join(found.fingerprint() for found in splits),
        sample,
    )


def _slices(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[begin : begin + ROWS] for begin in range(0, len(rows), ROWS)]


def _spaced(sets: list[Sequence[Row]], characters: int) -> Iterator[Row]:
    """Rows at equal distances, of about so many characters; all of them if these are fewer."""
    for rows in sets:
        some = [rows[i] for i in range(0, len(rows), max(1, len(rows) // 1000))]
        mean = sum(len(t) for row in some for t in row) / max(1, len(some))
        for i in range(0, len(rows), max(1, round(len(sets) * len(rows) * mean / characters))):
            yield rows[i]
