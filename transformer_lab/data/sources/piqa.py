"""PIQA (Bisk 2020): how a goal of everyday life is reached, one right way of two."""

from typing import Any

from transformer_lab.data.endings import read_endings
from transformer_lab.data.splits import Found, Report


def preferences(config: Any, report: Report) -> Found:
    """The right and the wrong way of each question of its validation set."""
    return read_endings("piqa")
