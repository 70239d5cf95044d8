"""Passages of the Brown corpus with their genres."""

from itertools import chain
from typing import Any

from transformer_lab.data.fetch import folders
from transformer_lab.data.labelled import Example
from transformer_lab.data.sources import brown
from transformer_lab.data.splits import Found, Item, Report

_PASSAGE = 5  # sentences


def labelled(config: Any, report: Report) -> Found:
    """Passages of five sentences with their genre; a shorter rest of a document is dropped."""
    items = []
    for document in brown.read(folders(config.path, brown.PACKAGE)[0]):
        whole = len(document.sentences) // _PASSAGE * _PASSAGE
        for i in range(0, whole, _PASSAGE):
            tokens = chain.from_iterable(document.sentences[i : i + _PASSAGE])
            text = brown.detokenise([word for word, _ in tokens])
            items.append(Item(document.name, Example(text, None, document.genre), document.genre))
    return Found({"train": items}, brown.LICENCE)
