"""Generated opinions for checks without downloads: more good words than bad, or fewer."""

import random
from typing import Any

from transformer_lab.data.labelled import Example, LabelledRow
from transformer_lab.data.splits import Found, Item, Report

ROWS = 300
PEOPLE = ["ann", "ben", "eva", "joe", "kim", "lou", "mia", "tom"]


def labelled(config: Any, report: Report) -> Found:
    """Texts with an odd number of good or bad words, labelled by which are more."""
    draw = random.Random(0)
    return found([_opinion(draw) for _ in range(ROWS)])


def found(rows: list[LabelledRow]) -> Found:
    """Wraps generated rows as a source's result, each row its own group."""
    return Found({"train": [Item(str(row), row) for row in rows]}, "made on the fly")


def _opinion(draw: random.Random) -> Example:
    signs = draw.choices(["good", "bad"], k=draw.choice([1, 3, 5]))
    words = signs + draw.choices(["the", "film", "was", "and", "very"], k=draw.randint(2, 6))
    draw.shuffle(words)
    label = "positive" if 2 * signs.count("good") > len(signs) else "negative"
    return Example(" ".join(words), None, label)
