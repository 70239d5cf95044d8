"""Sentences of the Brown corpus with a part of speech for each word."""

from typing import Any

from transformer_lab.data.fetch import folders
from transformer_lab.data.labelled import Tagged
from transformer_lab.data.sources import brown
from transformer_lab.data.splits import Found, Item, Report


def labelled(config: Any, report: Report) -> Found:
    """Sentences with base tags: without -tl, -hl, -nc; foreign words are fw, a dash is --."""
    items = []
    for document in brown.read(folders(config.path, brown.PACKAGE)[0]):
        for sentence in document.sentences:
            row = Tagged([w for w, _ in sentence], [t.split("-")[0] or "--" for _, t in sentence])
            items.append(Item(document.name, row, document.genre))
    return Found({"train": items}, brown.LICENCE)
