"""Loads labelled text for fine-tuning: classes, tagged words or questions."""

from dataclasses import dataclass
from typing import NamedTuple

from transformer_lab.data.splits import SourceConfig, Splits, key, split_by_share


class Example(NamedTuple):
    """A text, or two texts, with a class (str), a value (float) or no label (None)."""

    text: str
    pair: str | None
    label: str | float | None


class Tagged(NamedTuple):
    """The words of a sentence, and a tag for each of them."""

    words: list[str]
    tags: list[str]


class Parsed(NamedTuple):
    """The words of a sentence, the word that each depends on, and in what relation: "dogs bark" has
    the heads [2, 0] and the tags [nsubj, root]. Words count from 1, and 0 is the root."""

    words: list[str]
    heads: list[int]
    tags: list[str]


class Question(NamedTuple):
    """A question about a context; each answer is (text, start), with start in characters.

    An impossible question has no answer in the context (SQuAD 2.0)."""

    id: str
    context: str
    question: str
    answers: list[tuple[str, int]]
    impossible: bool


LabelledRow = Example | Tagged | Parsed | Question


@dataclass(frozen=True)
class LabelledConfig(SourceConfig):
    """Settings of labelled text: the source, its files and columns, the splits and a limit."""

    # reviews | spam | brown_genre | brown_pos | spans | sst2 | mrpc | rte | files
    # or trees: turkish_treebanks
    # or, made on the fly: generated | generated_tags | generated_spans
    source: str = "reviews"
    path: str = ""  # local copy of the set, or the user's file or folder
    text_column: str = "text"  # of a table, by its header; in .conll a number, else the first
    pair_column: str = ""  # of a table, for pairs of texts
    label_column: str = "label"  # "": a table without labels; in .conll a number, else the last
    validation_share: float = 0.1  # of the rows; splits that the source has stay as they are
    test_share: float = 0.1  # held out for the final scores
    max_examples: int = 0  # training rows at most (0 = all); held-out ones stay the same
    split_seed: int = 0  # another number holds out others

    KIND = "labelled"


def load_labelled(config: LabelledConfig) -> Splits:
    """The rows of a config, all of one type; fetched when first used, the same for every run.

    Ignoring case and white space, no training row is in another split or occurs twice, and no group
    (film, thread, document, article) is divided between new splits. `labels` covers all splits."""
    return split_by_share(config, "max_examples", row_key, row_key, labels_of=labels_of)


def row_key(row: LabelledRow) -> str:
    """The text by which rows are compared, whatever their labels; "" for a row without text."""
    if isinstance(row, Tagged | Parsed):
        return key(" ".join(row.words))
    first, second = (row.context, row.question) if isinstance(row, Question) else row[:2]
    return f"{name}\0{key(second or '')}" if (name := key(first)) else ""


def labels_of(rows: list[LabelledRow]) -> list[str]:
    """The sorted classes or tags of rows of one type; [] for values and questions."""
    if rows and isinstance(rows[0], Tagged | Parsed):
        return sorted({tag for row in rows for tag in row.tags})
    return sorted({r.label for r in rows if isinstance(r, Example) and isinstance(r.label, str)})
