"""Small made-up labelled sets, for checks that download nothing."""

import random
from collections.abc import Iterator

from transformer_lab.data.labelled_rows import Example, Item, Question, Tagged

_ROWS = 300
_PEOPLE = ["ann", "ben", "eva", "joe", "kim", "lou", "mia", "tom"]
_PLACES = ["paris", "rome", "new york", "oslo"]
_THINGS = ["cup", "hat", "red map", "old coin"]


def classes() -> list[Item]:
    """Whether more words of a text are good or bad; an odd number of them is either."""
    draw = random.Random(0)
    return [_item(row) for row in (_opinion(draw) for _ in range(_ROWS))]


def _opinion(draw: random.Random) -> Example:
    signs = draw.choices(["good", "bad"], k=draw.choice([1, 3, 5]))
    words = signs + draw.choices(["the", "film", "was", "and", "very"], k=draw.randint(2, 6))
    draw.shuffle(words)
    label = "positive" if 2 * signs.count("good") > len(signs) else "negative"
    return Example(" ".join(words), None, label)


def tags() -> list[Item]:
    """BIO tags of people and places; a place's name after "meets" is a person's."""
    draw = random.Random(0)
    return [_item(Tagged(*map(list, zip(*_meeting(draw), strict=True)))) for _ in range(_ROWS)]


def _meeting(draw: random.Random) -> Iterator[tuple[str, str]]:
    yield from _entity(draw.choice(_PEOPLE), "PER")
    yield "meets", "O"
    yield from _entity(draw.choice(_PEOPLE + _PLACES), "PER")
    yield "in", "O"
    yield from _entity(draw.choice(_PLACES), "LOC")


def _entity(name: str, kind: str) -> Iterator[tuple[str, str]]:
    for i, word in enumerate(name.split()):
        yield word, f"{'I' if i else 'B'}-{kind}"


def spans() -> list[Item]:
    """Who has what: one in four asks for someone who is not there."""
    draw = random.Random(0)
    return [_item(_ownership(draw, i)) for i in range(_ROWS)]


def _ownership(draw: random.Random, number: int) -> Question:
    *owners, other = draw.sample(_PEOPLE, 4)
    facts = [f"{owner} has the {draw.choice(_THINGS)} ." for owner in owners]
    context, asked = " ".join(facts), draw.randrange(4)
    if asked == 3:
        return Question(str(number), context, f"what has {other} ?", [], True)
    before = f"{owners[asked]} has the "
    answer = facts[asked].removeprefix(before).removesuffix(" .")
    place = context.index(before) + len(before)
    question = f"what has {owners[asked]} ?"
    return Question(str(number), context, question, [(answer, place)], False)


def _item(row: Example | Tagged | Question) -> Item:
    return Item(str(row), row)
