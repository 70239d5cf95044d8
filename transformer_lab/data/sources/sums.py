"""Sums of two numbers below 100 as instructions, each once: "7+48=" and "55"."""

from typing import Any

from transformer_lab.data.dialogues import plain
from transformer_lab.data.splits import Found, Item, Report

LICENCE = "none needed (generated)"
BELOW = 100


def instructions(config: Any, report: Report) -> Found:
    """All pairs of numbers in order; a+b and b+a are never in two splits."""
    pairs = [(a, b) for a in range(BELOW) for b in range(BELOW)]
    return Found(
        {"train": [
            Item(f"{min(a, b)} {max(a, b)}", plain(f"{a}+{b}=", str(a + b))) for a, b in pairs
        ]},
        LICENCE,
    )  # fmt: skip
