"""Generated questions with answers in a text, for checks without downloads."""

import random
from typing import Any

from transformer_lab.data.labelled import Question
from transformer_lab.data.sources.generated import PEOPLE, ROWS, found
from transformer_lab.data.splits import Found, Report

_THINGS = ["cup", "hat", "red map", "old coin"]


def labelled(config: Any, report: Report) -> Found:
    """Who has what, as questions; one in four asks for a person that the text does not name."""
    draw = random.Random(0)
    return found([_ownership(draw, i) for i in range(ROWS)])


def _ownership(draw: random.Random, number: int) -> Question:
    *owners, other = draw.sample(PEOPLE, 4)
    facts = [f"{owner} has the {draw.choice(_THINGS)} ." for owner in owners]
    context, asked = " ".join(facts), draw.randrange(4)
    if asked == 3:
        return Question(str(number), context, f"what has {other} ?", [], True)
    before = f"{owners[asked]} has the "
    answer = facts[asked].removeprefix(before).removesuffix(" .")
    place = context.index(before) + len(before)
    question = f"what has {owners[asked]} ?"
    return Question(str(number), context, question, [(answer, place)], False)
