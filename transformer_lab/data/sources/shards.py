"""A prepared directory as a source; training examples stay in its shards, as tokens."""

from typing import Any

from transformer_lab.data.shards import Shards
from transformer_lab.data.splits import SPLITS, Found, Report
from transformer_lab.errors import LabError


def pairs(config: Any, report: Report) -> Found:
    """The held-out pairs of a prepared directory, and no pairs to train on."""
    shards = Shards(config.path)
    report.update(shards.report)
    held = {split: sum(shards.held_out(split).values(), []) for split in SPLITS[1:]}
    return Found({"train": [], **held}, shards.licence)


def documents(config: Any, report: Report) -> Found:
    raise LabError(
        'config.data.source = "shards" holds tokens for language_modeling: another task needs '
        "the documents themselves"
    )
