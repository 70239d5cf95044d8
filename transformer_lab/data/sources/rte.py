"""Pairs of texts, of which the first entails the second or not: GLUE's RTE."""

from typing import Any

from transformer_lab.data.glue import read_glue
from transformer_lab.data.splits import Found, Report


def labelled(config: Any, report: Report) -> Found:
    """The 277 pairs of its validation set."""
    return read_glue(
        config.path, "rte", ("sentence1", "sentence2"), ("entailment", "not_entailment")
    )
