"""HellaSwag (Zellers 2019): how a described scene goes on, one right ending among four."""

from typing import Any

from transformer_lab.data.endings import read_endings
from transformer_lab.data.splits import Found, Report


def preferences(config: Any, report: Report) -> Found:
    """The right ending and a wrong one of each question of its validation set."""
    return read_endings("hellaswag")
