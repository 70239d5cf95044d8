"""Generated sentences with tagged names, for checks without downloads."""

import random
from collections.abc import Iterator
from typing import Any

from transformer_lab.data.labelled import Tagged
from transformer_lab.data.sources.generated import PEOPLE, ROWS, found
from transformer_lab.data.splits import Found, Report

_PLACES = ["paris", "rome", "new york", "oslo"]


def labelled(config: Any, report: Report) -> Found:
    """BIO tags of people and places; a place's name after "meets" is tagged as a person."""
    draw = random.Random(0)
    return found([Tagged(*map(list, zip(*_meeting(draw), strict=True))) for _ in range(ROWS)])


def _meeting(draw: random.Random) -> Iterator[tuple[str, str]]:
    yield from _entity(draw.choice(PEOPLE), "PER")
    yield "meets", "O"
    yield from _entity(draw.choice(PEOPLE + _PLACES), "PER")
    yield "in", "O"
    yield from _entity(draw.choice(_PLACES), "LOC")


def _entity(name: str, kind: str) -> Iterator[tuple[str, str]]:
    for i, word in enumerate(name.split()):
        yield word, f"{'I' if i else 'B'}-{kind}"
