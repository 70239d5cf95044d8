"""A generated toy translation set: each target has its source's words in reverse order."""

import random
from typing import Any

from transformer_lab.data.splits import Found, Item, Report

LICENCE = "none needed (generated)"
# fmt: off
WORDS = (
    "a", "the", "red", "blue", "old", "new", "big", "tiny", "cat", "dog", "fox", "hen", "owl",
    "man", "child", "king", "sees", "likes", "follows", "finds", "calls", "runs", "sings",
    "under", "over", "near", "and", "but", "then", "now", "here", "there", "today", "house",
    "tree", "river", "hill", "boat", "moon", "stone",
)
# fmt: on


def pairs(config: Any, report: Report) -> Found:
    """As many pairs as the limit and the held-out sizes need, or 2,000 without a limit."""
    held_out = config.validation_size + config.test_size
    count = config.max_pairs + held_out if config.max_pairs else 2000
    return Found({"train": make(count)}, LICENCE)


def make(count: int) -> list[Item]:
    """`count` pairs with distinct sources of 3 to 8 words, always the same."""
    # random() alone is promised to give the same numbers in every Python.
    draw = random.Random(0).random
    sources: dict[str, None] = {}
    while len(sources) < count:
        length = 3 + int(6 * draw())
        words = [WORDS[int(len(WORDS) * draw())] for _ in range(length)]
        sources.setdefault(" ".join(words))
    return [Item(text, (text, " ".join(reversed(text.split())))) for text in sources]
