"""Generated documents for checks without downloads."""

import random
from collections.abc import Iterator
from typing import Any

from transformer_lab.data.splits import Found, Item, Report

_COUNT = 300


def documents(config: Any, report: Report) -> Found:
    return Found({"train": [Item(text, text) for text in patterns(_COUNT)]}, "made on the fly")


def patterns(count: int) -> Iterator[str]:
    """Texts that say who has which thing, then ask for it in another order."""
    draw = random.Random(0)
    for _ in range(count):
        owners = draw.sample(["ann", "ben", "eva", "joe", "kim", "lou", "mia", "tom"], 4)
        things = [
            f"{draw.choice(['red', 'blue', 'old', 'new'])} {draw.choice(['cup', 'hat', 'map'])}"
            for _ in owners
        ]
        has = list(zip(owners, things, strict=True))
        told = " ".join(f"{owner} has a {thing} ." for owner, thing in has)
        asked = "\n".join(f"what has {o} ? a {t} ." for o, t in draw.sample(has, len(has)))
        yield f"{told}\n{asked}"
