"""Documents for language models, whatever their source: read, split whole, and described."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from transformer_lab.data import bible, brown, libreoffice_help, tfds_pairs, user_files
from transformer_lab.data.fetch import fetch
from transformer_lab.data.pairs import Report, key
from transformer_lab.data.shards import Shards
from transformer_lab.data.splits import check_shares, shuffled
from transformer_lab.data.user_files import (
    JSON_LINES,
    SPLITS,
    lines,
    parse_json,
    split_of,
    visible,
)
from transformer_lab.errors import LabError, nearest

Text = tuple[str, str]  # group, document: the held-out documents are spread over the groups
Parts = dict[str, list[Text]]  # "train" and the held-out splits that the source itself has

_PATTERNS = 300


@dataclass(frozen=True)
class DocumentsConfig:
    """Which documents to load and how to split them."""

    # brown | bible | libreoffice_help | files | tfds | patterns | shards (see data.shards)
    source: str = "brown"
    path: str = ""  # local copy of the set, or the user's file or folder
    tfds_name: str = ""  # a set with the feature "text", e.g. "lm1b"
    validation_share: float = 0.05  # of the documents; splits that the source has stay as they are
    test_share: float = 0.05
    max_documents: int = 0  # training documents at most (0 = all); held-out ones stay the same
    split_seed: int = 0

    def __post_init__(self):
        if self.source not in (known := {*_SOURCES, "shards"}):
            valid = nearest(self.source, known)
            raise LabError(f'config.data.source = "{self.source}" is unknown{valid}')
        check_shares(self.validation_share, self.test_share)
        if self.max_documents < 0:
            raise LabError(f"config.data.max_documents = {self.max_documents} is negative: use 0")


@dataclass(frozen=True)
class Documents:
    """The documents of each split; `report` counts those read, those dropped, and each split."""

    train: list[str]
    validation: list[str]
    test: list[str]
    report: dict[str, int]
    licence: str


def load_documents(config: DocumentsConfig) -> Documents:
    """The documents of a config, fetched at first use; the same for every run with that config.

    Case and white space aside, no training document stands in another split or comes twice.
    """
    if config.source == "shards":
        raise LabError(
            'config.data.source = "shards" holds tokens for language_modeling: another task needs '
            "the documents themselves"
        )
    report: Report = Counter()
    parts, licence = _SOURCES[config.source](config)
    report["read"] = sum(map(len, parts.values()))
    held = {key(text) for split in parts if split != "train" for _, text in parts[split]}
    parts["train"] = _hold_out(_distinct(parts["train"], held, report), parts, config)
    texts = {split: [text for _, text in parts[split]] for split in SPLITS}
    if config.max_documents and len(texts["train"]) > config.max_documents:
        report["over_max_documents"] = len(texts["train"]) - config.max_documents
        some = set(shuffled(texts["train"], config.split_seed)[: config.max_documents])
        texts["train"] = [text for text in texts["train"] if text in some]
    report.update({split: len(texts[split]) for split in SPLITS})
    counts = {name: count for name, count in report.items() if count or name in SPLITS}
    return Documents(**texts, report=counts, licence=licence)


def prepared_documents(shards: Shards) -> Documents:
    """The held-out documents; those to train on stay in their shards, as tokens."""
    held = {split: [t for (t,) in shards.held_out(split)[""]] for split in SPLITS[1:]}
    counts = {split: len(texts) for split, texts in held.items()}
    return Documents([], **held, report={**shards.report, **counts}, licence=shards.licence)


def fingerprint(documents: Documents) -> str:
    """SHA-256 of the content of all splits, in order."""
    splits = [getattr(documents, split) for split in SPLITS]
    return hashlib.sha256(json.dumps(splits).encode()).hexdigest()


def _distinct(texts: list[Text], held: set[str], report: Report) -> list[Text]:
    kept, seen = [], set()
    for group, text in texts:
        name = key(text)
        if not name:
            report["empty"] += 1
        elif name in held:
            report["in_another_split"] += 1
        elif name in seen:
            report["duplicate"] += 1
        else:
            seen.add(name)
            kept.append((group, text))
    return kept


def _hold_out(texts: list[Text], parts: Parts, config: DocumentsConfig) -> list[Text]:
    """The texts to train on; the splits that `parts` lacks get their shares of the others.

    At least one text goes to a split whose share is not 0. A group gives as near to its share as
    whole documents allow: all are ranked by their place within their group.
    """
    groups: dict[str, list[str]] = {}
    for group, text in texts:
        groups.setdefault(group, []).append(text)
    place = {
        (group, text): (rank + 0.5) / len(members)
        for group, members in groups.items()
        for rank, text in enumerate(shuffled(members, config.split_seed))
    }
    queue = sorted(place, key=lambda text: (place[text], text))
    for split, share in (("test", config.test_share), ("validation", config.validation_share)):
        if split not in parts:
            size = max(1, round(share * len(texts))) if share else 0
            parts[split], queue = queue[:size], queue[size:]
    if not queue:
        raise LabError(
            f"{len(texts)} documents are too few: config.data.validation_share = "
            f"{config.validation_share} and test_share = {config.test_share} leave none to train on"
        )
    left = set(queue)
    return [text for text in texts if text in left]


def _folder(config: DocumentsConfig, package: str) -> Path:
    """The local copy, if one is named, else the package, fetched at first use."""
    if config.path and not Path(config.path).expanduser().is_dir():
        raise LabError(f"config.data.path: no folder {config.path}")
    return Path(config.path).expanduser() if config.path else fetch(package)


def _brown(config: DocumentsConfig) -> tuple[Parts, str]:
    documents = brown.read(_folder(config, brown.PACKAGE))
    return {"train": [(d.genre, brown.text(d)) for d in documents]}, brown.LICENCE


def _bible(config: DocumentsConfig) -> tuple[Parts, str]:
    """The chapters of the World English Bible, a verse a line."""
    folder = _folder(config, bible.PACKAGES["en"])
    rows = bible.read([folder], "en", "en", Counter())
    chapters = groupby(rows, key=lambda row: row.group)
    texts = [("", "\n".join(row.source for row in verses)) for _, verses in chapters]
    return {"train": texts}, "World English Bible: public domain"


def _libreoffice_help(config: DocumentsConfig) -> tuple[Parts, str]:
    """The English pages, a paragraph a line."""
    folder = _folder(config, libreoffice_help.PACKAGES["en"])
    files = sorted(folder.rglob("en-US/text/**/*.html"))
    if not files:
        raise LabError(f"no page below a folder en-US/text with LibreOffice's help in {folder}")
    pages = (libreoffice_help.blocks(_whole(file)).values() for file in files)
    texts = [("", "\n".join(" ".join(libreoffice_help.sentences(b)) for b in p)) for p in pages]
    return {"train": texts}, libreoffice_help.LICENCE


def _files(config: DocumentsConfig) -> tuple[Parts, str]:
    if not config.path:
        raise LabError('config.data.source = "files" needs config.data.path: your file or folder')
    path = Path(config.path).expanduser()
    kinds = (".txt", *JSON_LINES)
    entries = visible(path, "*", kinds) if path.is_dir() else []
    named = [entry for entry in entries if entry.is_dir() or entry.suffix in kinds]
    names = [split_of(entry.stem) for entry in named]
    if not set(names) & set(SPLITS):
        return {"train": [("", text) for text in _texts(path)]}, user_files.LICENCE
    if "train" not in names or set(names) - set(SPLITS) or len(set(names)) < len(names):
        raise LabError(
            f"{path} holds {', '.join(entry.name for entry in named)}: for splits of your own, "
            "train, validation and test, each a folder, .txt or .jsonl, and nothing else"
        )
    return {
        name: [("", text) for text in _texts(entry)]
        for name, entry in zip(names, named, strict=True)
    }, user_files.LICENCE


def _texts(path: Path) -> list[str]:
    """The documents of a folder of .txt files, of JSON lines, or of blank-line separated text."""
    if path.is_dir():
        files = [file for file in visible(path, kinds=".txt") if file.suffix == ".txt"]
        if not files:
            raise LabError(f"config.data.path: no .txt file in {path}")
        return [_whole(file) for file in files]
    if path.suffix in JSON_LINES:
        return [_record(line, f"{path}:{n}") for n, line in lines(path) if line.strip()]
    blocks = groupby((line for _, line in lines(path)), key=lambda line: bool(line.strip()))
    return ["\n".join(block) for full, block in blocks if full]


def _whole(file: Path) -> str:
    return "\n".join(line for _, line in lines(file))


def _record(line: str, where: str) -> str:
    record = parse_json(line, where)
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise LabError(f'{where}: expected an object with a string "text"')
    return record["text"]


def _tfds(config: DocumentsConfig) -> tuple[Parts, str]:
    """All of a prepared set, read into memory; splits that it lacks are held out of train."""
    try:
        splits = tfds_pairs.read_splits(config.tfds_name, config.path, ("text", "text"), 0, 0)
    except LabError as error:  # there the field is a language
        raise LabError(
            str(error).replace("config.data.languages", "config.data.tfds_name")
        ) from error
    parts = {split: [("", text) for text, _ in rows] for split, rows in splits.items() if rows}
    return parts, f"see https://www.tensorflow.org/datasets ({config.tfds_name})"


def _patterns(config: DocumentsConfig) -> tuple[Parts, str]:
    return {"train": [("", text) for text in patterns(_PATTERNS)]}, "made on the fly"


def patterns(count: int) -> Iterator[str]:
    """Made-up documents: who has which thing, said once, then asked in another order."""
    draw = random.Random(0)
    for _ in range(count):
        owners = draw.sample(["ann", "ben", "eva", "joe", "kim", "lou", "mia", "tom"], 4)
        things = [
            f"{draw.choice(['red', 'blue', 'old', 'new'])} {draw.choice(['cup', 'hat', 'map'])}"
            for _ in owners
        ]
        has = list(zip(owners, things, strict=True))
        told = " ".join(f"{owner} has a {thing} ." for owner, thing in has)
        asked = "\n".join(f"what has {o} ? a {t} ." for o, t in draw.sample(has, len(has)))
        yield f"{told}\n{asked}"


_SOURCES: dict[str, Callable[[DocumentsConfig], tuple[Parts, str]]] = {
    "brown": _brown,
    "bible": _bible,
    "libreoffice_help": _libreoffice_help,
    "files": _files,
    "tfds": _tfds,
    "patterns": _patterns,
}
