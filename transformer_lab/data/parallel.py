"""Parallel sentences, whatever their source: read, filtered, split, and described."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_lab.data import bible, catalogues, libreoffice_help, reversal, user_files
from transformer_lab.data.fetch import fetch
from transformer_lab.data.pairs import Report, Row, clean
from transformer_lab.data.shards import Shards
from transformer_lab.data.splits import hold_out, shuffled
from transformer_lab.data.tfds_pairs import read_splits as read_tfds_splits
from transformer_lab.errors import LabError, known, nearest

Pairs = Sequence[tuple[str, str]]
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class PairsConfig:
    """Which pairs to load and how to split them."""

    # catalogues | libreoffice_help | bible | files | tfds | reverse | shards (see data.shards)
    source: str = "catalogues"
    languages: str = "en-fr"  # source-target
    path: str = ""  # local copy of the set, or the user's file(s)
    tfds_name: str = ""  # e.g. "wmt14_translate/de-en"
    validation_size: int = 500  # pairs
    test_size: int = 500
    max_characters: int = 200  # pairs with a longer side are dropped and counted (0 = no limit)
    max_pairs: int = 0  # training pairs at most (0 = all); the held-out splits stay the same
    split_seed: int = 0

    def __post_init__(self):
        known("config.data.source = ", self.source, _SOURCES)
        for name in ("validation_size", "test_size", "max_characters", "max_pairs"):
            if getattr(self, name) < 0:
                raise LabError(f"config.data.{name} = {getattr(self, name)} is negative: use 0")
        self.sides()

    def sides(self) -> tuple[str, str]:
        """The source and the target language."""
        parts = self.languages.split("-")
        if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
            raise LabError(
                f'config.data.languages = "{self.languages}": give two languages, as "en-fr"'
            )
        return parts[0], parts[1]


@dataclass(frozen=True)
class PairSplits:
    """(source, target) pairs of each split.

    `report` counts the pairs read, those dropped and why, and each split; where all pairs were
    read, "read" is the sum of the others. Lists, or lazy sequences for the source tfds.
    """

    train: Pairs
    validation: Pairs
    test: Pairs
    report: dict[str, int]
    licence: str


def load_pairs(config: PairsConfig) -> PairSplits:
    """The pairs of a config, fetched at first use; the same for every run with that config."""
    report: Report = Counter()
    parts, licence = _SOURCES[config.source](config, report)
    limit = config.max_pairs
    if limit and len(parts["train"]) > limit:
        report["over_max_pairs"] += len(parts["train"]) - limit
        parts["train"] = _some(parts["train"], limit, config.split_seed)
    report.update({split: len(parts[split]) for split in SPLITS})
    counts = {name: count for name, count in report.items() if count or name in SPLITS}
    return PairSplits(*(parts[split] for split in SPLITS), counts, licence)


def fingerprint(splits: PairSplits) -> str:
    """SHA-256 of the content of all splits, in order.

    Lists are read in full; of a lazy split, the length and 256 evenly spaced pairs.
    """
    digest = hashlib.sha256()
    for name in SPLITS:
        pairs = getattr(splits, name)
        step = 1 if isinstance(pairs, list) else max(1, len(pairs) // 256)
        digest.update(f"{name} {len(pairs)}\n".encode())
        for i in range(0, len(pairs), step):
            digest.update(json.dumps(pairs[i]).encode() + b"\n")
    return digest.hexdigest()


def _some(pairs: Pairs, limit: int, seed: int) -> Pairs:
    """A sample in the pairs' order, which a larger limit only adds to; of a lazy split its head."""
    if not isinstance(pairs, list):
        return pairs[:limit]
    order = {text: i for i, text in enumerate(shuffled([a + "\t" + b for a, b in pairs], seed))}
    return [pair for pair in pairs if order["\t".join(pair)] < limit]


Parts = tuple[dict[str, Pairs], str]  # pairs of each split, licence


def _split(rows: list[Row], config: PairsConfig, report: Report, licence: str) -> Parts:
    rows = clean(rows, config.max_characters, report)
    sizes = config.validation_size, config.test_size
    parts = hold_out(rows, *sizes, config.split_seed, report)
    return {
        split: [(row.source, row.target) for row in part]
        for split, part in zip(SPLITS, parts, strict=True)
    }, licence


def _folders(config: PairsConfig, packages: Sequence[str]) -> list[Path]:
    """The local copy, if one is named, else the packages, fetched at first use."""
    if not config.path:
        return [fetch(name) for name in packages]
    folder = Path(config.path).expanduser()
    if not folder.is_dir():
        raise LabError(f"config.data.path: no folder {folder}")
    return [folder]


def _catalogues(config: PairsConfig, report: Report) -> Parts:
    if not config.path and set(config.sides()) != {"en", "fr"}:
        raise LabError(
            f'config.data.languages = "{config.languages}": the catalogues are en-fr or fr-en; '
            "set config.data.path for catalogues of your own"
        )
    folders = _folders(config, catalogues.PACKAGES)
    rows = catalogues.read(folders, *config.sides(), report)
    return _split(rows, config, report, catalogues.LICENCE)


def _packaged(reader) -> Callable[[PairsConfig, Report], Parts]:
    """For a set with a package for each language."""

    def load(config: PairsConfig, report: Report) -> Parts:
        for language in config.sides():
            if language not in reader.PACKAGES:
                valid = nearest(language, reader.PACKAGES)
                raise LabError(f'config.data.languages: {config.source} has no "{language}"{valid}')
        folders = _folders(config, [reader.PACKAGES[language] for language in config.sides()])
        rows = reader.read(folders, *config.sides(), report)
        return _split(rows, config, report, reader.LICENCE)

    return load


def _files(config: PairsConfig, report: Report) -> Parts:
    if not config.path:
        raise LabError('config.data.source = "files" needs config.data.path: your file or files')
    folder = Path(config.path).expanduser()
    if not folder.is_dir():
        rows = user_files.read(config.path, *config.sides(), report)
        return _split(rows, config, report, user_files.LICENCE)
    parts = user_files.read_splits(folder, *config.sides())
    report["read"] += sum(map(len, parts.values()))
    # The user's held-out pairs are theirs to choose: only the training split is filtered.
    rows = [Row("", *pair) for pair in parts["train"]]
    parts["train"] = [row[1:] for row in clean(rows, config.max_characters, report)]
    return parts, user_files.LICENCE


def _tfds(config: PairsConfig, report: Report) -> Parts:
    sizes = config.validation_size, config.test_size
    parts = read_tfds_splits(config.tfds_name, config.path, config.sides(), *sizes)
    report["read"] += sum(map(len, parts.values()))
    return parts, f"see https://www.tensorflow.org/datasets ({config.tfds_name})"


def _reverse(config: PairsConfig, report: Report) -> Parts:
    held_out = config.validation_size + config.test_size
    count = config.max_pairs + held_out if config.max_pairs else 2000
    return _split(reversal.make(count, report), config, report, reversal.LICENCE)


def _shards(config: PairsConfig, report: Report) -> Parts:
    """The held-out pairs; those to train on stay in their shards, as tokens."""
    shards = Shards(config.path)
    report.update(shards.report)
    held = {split: sum(shards.held_out(split).values(), []) for split in SPLITS[1:]}
    return {"train": [], **held}, shards.licence


_SOURCES: dict[str, Callable[[PairsConfig, Report], Parts]] = {
    "catalogues": _catalogues,
    "libreoffice_help": _packaged(libreoffice_help),
    "bible": _packaged(bible),
    "files": _files,
    "tfds": _tfds,
    "reverse": _reverse,
    "shards": _shards,
}
