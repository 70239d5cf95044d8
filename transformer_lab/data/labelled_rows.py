"""What labelled sets hold: texts with a label, tagged sentences, questions with answer spans."""

from typing import NamedTuple

from transformer_lab.data.pairs import key


class Example(NamedTuple):
    """A text, or a pair of them, with its class (str) or value (float); None: not labelled."""

    text: str
    pair: str | None
    label: str | float | None


class Tagged(NamedTuple):
    """The words of a sentence and as many tags."""

    words: list[str]
    tags: list[str]


class Question(NamedTuple):
    """A question on a context; each answer is (text, start), with start in characters.

    The context does not answer an impossible one, which has no answers (SQuAD 2.0).
    """

    id: str
    context: str
    question: str
    answers: list[tuple[str, int]]
    impossible: bool


LabelledRow = Example | Tagged | Question


class Item(NamedTuple):
    """A row on its way to a split: a group is never divided, each stratum gives its share."""

    group: str
    row: LabelledRow
    stratum: str = ""


def row_key(row: LabelledRow) -> str:
    """What makes two rows the same one, whatever their labels; "" for a row without text."""
    if isinstance(row, Tagged):
        return key(" ".join(row.words))
    texts = (row.context, row.question) if isinstance(row, Question) else (row.text, row.pair or "")
    return "\0".join(map(key, texts)) if key(texts[0]) else ""


def labels_of(rows: list[LabelledRow]) -> list[str]:
    """The classes or tags of rows of one type, sorted; none of values and questions."""
    if rows and isinstance(rows[0], Tagged):
        return sorted({tag for row in rows for tag in row.tags})
    return sorted({r.label for r in rows if isinstance(r, Example) and isinstance(r.label, str)})
