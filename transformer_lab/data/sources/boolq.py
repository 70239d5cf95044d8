"""BoolQ (Clark 2019): questions of searchers, and the Wikipedia passages that answer them."""

from typing import Any

from transformer_lab.data.choices import published
from transformer_lab.data.endings import LICENCE
from transformer_lab.data.searches import Library
from transformer_lab.data.splits import Report


def searches(config: Any, report: Report) -> Library:
    """The questions of its validation set, each with its passage, whose title is left out, as it
    would give most answers away."""
    documents: dict[str, tuple[str, str]] = {}
    found: dict[str, list[str]] = {}
    for item in published("boolq"):
        whole, _, question = item.contexts[0].removesuffix("\nAnswer:").rpartition("\nQuestion: ")
        title, _, passage = whole.partition(" -- ")
        documents.setdefault(passage, ("", passage))
        found.setdefault(question, []).append(passage)
    return Library(documents, {"train": list(found.items())}, LICENCE)
