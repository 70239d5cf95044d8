"""Loads parallel sentences for translation, (source, target) texts, from any source."""

import hashlib
import json
from dataclasses import dataclass

from transformer_lab.data.splits import (
    SPLITS,
    Item,
    SourceConfig,
    Splits,
    both_texts,
    distinct,
    finish,
    read_items,
    split_by_source,
)
from transformer_lab.errors import LabError

HELD_OUT = 500  # pairs of each held-out split, unless a config says otherwise


@dataclass(frozen=True)
class PairsConfig(SourceConfig):
    """Settings of parallel sentences: the source, its files, the languages, splits and limits."""

    # catalogues | libreoffice_help | bible | files | tfds | reverse | shards (see data.shards),
    # or sentences and their trees: python_trees | link_grammar
    source: str = "catalogues"
    languages: str = "en-fr"  # source-target
    path: str = ""  # local copy of the set, or the user's file(s)
    tfds_name: str = ""  # e.g. "wmt14_translate/de-en"
    # Pairs; while it is the default, of your own files at most a tenth of the pairs
    validation_size: int = HELD_OUT
    test_size: int = HELD_OUT  # pairs held out for the final scores
    max_characters: int = 200  # pairs with a longer side are dropped and counted (0 = no limit)
    max_pairs: int = 0  # training pairs at most (0 = all); the held-out splits stay the same
    split_seed: int = 0  # another number holds out others

    KIND = "pairs"

    def __post_init__(self):
        super().__post_init__()
        self.sides()

    def sides(self) -> tuple[str, str]:
        """The source and the target language; LabError if `languages` does not name two."""
        parts = self.languages.split("-")
        if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
            raise LabError(
                f'config.data.languages = "{self.languages}": give two languages, as "en-fr"'
            )
        return parts[0], parts[1]


class PairSplits(Splits):
    """The (source, target) pairs of each split: lists, or lazy sequences for the source tfds.

    If all pairs were read, the report's "read" is the sum of its other counts."""

    def fingerprint(self) -> str:
        """A SHA-256 of all splits' content, or of 256 evenly spaced pairs of a lazy split."""
        digest = hashlib.sha256()
        for name in SPLITS:
            pairs = getattr(self, name)
            step = 1 if isinstance(pairs, list) else max(1, len(pairs) // 256)
            digest.update(f"{name} {len(pairs)}\n".encode())
            for i in range(0, len(pairs), step):
                digest.update(json.dumps(pairs[i]).encode() + b"\n")
        return digest.hexdigest()


def load_pairs(config: PairsConfig) -> PairSplits:
    """The pairs of a config, fetched when first used; the same for every run with that config.

    Held-out pairs that come from the source are not filtered."""
    found, report = read_items(config)
    rows = dict(found.parts)
    if isinstance(rows["train"], list):
        rows["train"] = distinct(rows["train"], both_texts, report, longest=config.max_characters)
        if "test" not in rows:
            sizes = [config.validation_size, config.test_size]
            if config.source == "files":  # the user's own, which may be few
                most = max(len(rows["train"]) // 10, 1)
                sizes = [min(n, most) if n == HELD_OUT else n for n in sizes]
            rows = split_by_source(rows["train"], *sizes, config.split_seed, report)
        rows = {s: [x.row if isinstance(x, Item) else x for x in part] for s, part in rows.items()}
    name = "\t".join
    return finish(PairSplits, rows, report, config, "max_pairs", name, licence=found.licence)
