"""Pairs of sentences from the news, which say the same or not (Dolan 2005): GLUE's MRPC."""

from typing import Any

from transformer_lab.data.glue import read_glue
from transformer_lab.data.splits import Found, Report


def labelled(config: Any, report: Report) -> Found:
    """The 408 pairs of its validation set."""
    return read_glue(config.path, "mrpc", ("sentence1", "sentence2"), ("different", "equivalent"))
