"""Rows of parallel text on their way to splits: folding, filters, and what was dropped."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

Report = Counter[str]


class Row(NamedTuple):
    """A sentence pair and the group (page, chapter) that must not be divided between splits."""

    group: str
    source: str
    target: str


def fold(text: str) -> str:
    """The text with each run of white space as one space and none at its ends."""
    return " ".join(text.split())


def key(source: str) -> str:
    """What makes two source sentences the same one: case and white space do not count."""
    return fold(source).casefold()


def clean(rows: Iterable[Row], max_characters: int, report: Report) -> list[Row]:
    """Rows with text on both sides, none too long, each pair once; drops are counted."""
    kept, seen = [], set()
    for row in rows:
        pair = (row.source, row.target)
        if not row.source.strip() or not row.target.strip():
            report["empty"] += 1
        elif max_characters and max(map(len, pair)) > max_characters:
            report["too_long"] += 1
        elif pair in seen:
            report["duplicate"] += 1
        else:
            seen.add(pair)
            kept.append(row)
    return kept
