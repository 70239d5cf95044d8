"""Who said it? Questions whose answer is an author's name among several quotations."""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from transformer_lab.data.fetch import folders
from transformer_lab.data.formats.lines import lines
from transformer_lab.data.labelled import Question
from transformer_lab.data.splits import Found, Item, Report, fold, key, shuffled
from transformer_lab.errors import LabError

PACKAGE = "fortunes"
LICENCE = "collection: BSD; quotations of many authors"

_IN_A_CONTEXT = 3
_ASKED_WORDS, _MOST_WORDS = 6, 40
_SIGNED = re.compile(r"(.+)\n[ \t]*-- ?(.+)", re.DOTALL)
_CAPITAL = r"[A-Z][\w.'-]*"
# A name, up to a title, place or remark that follows it.
_NAME = re.compile(
    rf"(?!From )({_CAPITAL}(?: (?:{_CAPITAL}|de|la|le|di|van|von|der|den)){{0,4}})"
    r"(?: in |,|;| ?[(\[]|$)"
)


def labelled(config: Any, report: Report) -> Found:
    """A question for each short quotation with an author's name; three make a context.

    Which three are together depends on the texts alone. A context is a group."""
    (folder,) = folders(config.path, PACKAGE)
    sources: dict[str, str] = {}
    seen = set()
    for text, source in _quotations(folder):
        if not _NAME.match(source):
            report["no_name"] += 1
        elif not _ASKED_WORDS < len(text.split()) <= _MOST_WORDS:
            report["length"] += 1
        elif key(text) in seen:
            report["duplicate"] += 1
        else:
            seen.add(key(text))
            sources[text] = source
    if not sources:
        raise LabError(f"no quotation that ends in a line '-- Author' in {folder}")
    order = shuffled(list(sources), 0)
    firsts = range(0, len(order), _IN_A_CONTEXT)
    blocks = [(i, order[i : i + _IN_A_CONTEXT]) for i in firsts]
    items = [item for first, block in blocks for item in _questions(first, block, sources)]
    return Found({"train": items}, LICENCE)


def _questions(first: int, block: list[str], sources: dict[str, str]) -> Iterator[Item]:
    context = " ".join(f"{text} -- {sources[text]}" for text in block)
    start = 0
    for number, text in enumerate(block, first):
        start += len(f"{text} -- ")
        name = _NAME.match(sources[text])[1]
        asked = f'Who said "{" ".join(text.split()[:_ASKED_WORDS])} ..."?'
        yield Item(context, Question(str(number), context, asked, [(name, start)], False))
        start += len(f"{sources[text]} ")


def _quotations(folder: Path) -> Iterator[tuple[str, str]]:
    """Text and source of each signed quotation; lines with a percent sign separate them."""
    for file in sorted(f for f in folder.rglob("*") if f.is_file() and not f.suffix):
        rows = (line for _, line in lines(file))
        for edge, quotation in groupby(rows, key=lambda line: line == "%"):
            signed = None if edge else _SIGNED.fullmatch("\n".join(quotation).strip())
            if signed:
                yield fold(signed[1]), fold(signed[2])
