"""Brackets to be closed as instructions: "([{" and "}])"."""

import random
from typing import Any

from transformer_lab.data.dialogues import plain
from transformer_lab.data.splits import Found, Item, Report

LICENCE = "none needed (generated)"
PAIRS = {"(": ")", "[": "]", "{": "}"}
LONGEST, COUNT = 12, 4000


def instructions(config: Any, report: Report) -> Found:
    """Distinct beginnings of 2 to 12 brackets of three kinds, some closed again, always the same;
    the answer closes those left open."""
    draw, found = random.Random(0).random, {}
    while len(found) < COUNT:
        length, text, left = 2 + int((LONGEST - 1) * draw()), "", []
        while len(text) < length:
            if left and draw() < 0.4:
                text += left.pop()
            else:
                opened = "([{"[int(3 * draw())]
                left.append(PAIRS[opened])
                text += opened
        if left:
            found[text] = "".join(reversed(left))
    return Found({"train": [Item(text, plain(text, end)) for text, end in found.items()]}, LICENCE)
