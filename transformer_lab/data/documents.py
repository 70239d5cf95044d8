"""Loads documents for language models from any source."""

from dataclasses import dataclass

from transformer_lab.data.shards import Shards
from transformer_lab.data.splits import SPLITS, SourceConfig, Splits, key, split_by_share


@dataclass(frozen=True)
class DocumentsConfig(SourceConfig):
    """Settings of documents: the source, its files, the splits and a limit."""

    # brown | bible | libreoffice_help | files | tfds | patterns | shards (see data.shards)
    source: str = "brown"
    path: str = ""  # local copy of the set, or the user's file or folder
    tfds_name: str = ""  # a set with the feature "text", e.g. "lm1b"
    validation_share: float = 0.05  # share of documents; splits that the source has are kept
    test_share: float = 0.05  # held out for the final scores
    max_documents: int = 0  # training documents at most (0 = all); held-out ones stay the same
    split_seed: int = 0  # another number holds out others

    KIND = "documents"


def load_documents(config: DocumentsConfig) -> Splits:
    """The documents of a config, fetched when first used; equal configs give equal splits.

    Ignoring case and white space, no training document is in another split or occurs twice. Each
    genre, if the source has genres, gives the held-out splits the same share."""
    return split_by_share(config, "max_documents", key, limit_name=str, mixed=False)


def prepared_documents(shards: Shards) -> Splits:
    """The held-out documents; the training documents stay in the shards, as tokens."""
    held = {split: [t for (t,) in shards.held_out(split)[""]] for split in SPLITS[1:]}
    counts = {split: len(texts) for split, texts in held.items()}
    return Splits([], **held, report={**shards.report, **counts}, licence=shards.licence)
