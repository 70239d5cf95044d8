"""Loads sentences with dependency trees: which word each word depends on, and in what relation."""

from dataclasses import dataclass
from typing import NamedTuple

from transformer_lab.data.splits import SourceConfig, Splits, key, split_by_share


class Parsed(NamedTuple):
    """A sentence with its tree: "dogs bark" has the heads [2, 0] and the labels [nsubj, root].

    A head is the number of a word, from 1, or 0: the one word that the sentence hangs on."""

    words: list[str]
    heads: list[int]
    labels: list[str]


@dataclass(frozen=True)
class TreebankConfig(SourceConfig):
    """Settings of dependency trees: the source, the splits and a limit."""

    source: str = "turkish_treebanks"  # turkish_treebanks | files (CoNLL-U)
    path: str = ""  # local copy of the set, or the user's file or folder
    validation_share: float = 0.1  # of the sentences; splits that the source has stay as they are
    test_share: float = 0.1  # held out for the final scores
    max_examples: int = 0  # training sentences at most (0 = all); held-out ones stay the same
    split_seed: int = 0  # another number holds out others

    KIND = "parsed"


def load_treebank(config: TreebankConfig) -> Splits:
    """The trees of a config, the same for every run; no sentence is in two splits, nor a document
    in two new ones. `labels` are the relations of all splits."""
    return split_by_share(config, "max_examples", row_key, row_key, labels_of=labels_of)


def row_key(row: Parsed) -> str:
    """The sentence by which rows are compared, whatever their trees."""
    return key(" ".join(row.words))


def labels_of(rows: list[Parsed]) -> list[str]:
    """The sorted relations of the rows."""
    return sorted({label for row in rows for label in row.labels})
