"""Sentences of film reviews, negative or positive (Socher 2013), as GLUE's SST-2 has them."""

from typing import Any

from transformer_lab.data.glue import read_glue
from transformer_lab.data.splits import Found, Report


def labelled(config: Any, report: Report) -> Found:
    """The 872 sentences of its validation set."""
    return read_glue(config.path, "sst2", ("sentence",), ("negative", "positive"))
