"""Dependency trees in CoNLL-U: ten columns a word, and a blank line after each sentence.

The format is that of Universal Dependencies (universaldependencies.org/format.html)."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from transformer_lab.data.formats.conll import ID
from transformer_lab.data.formats.lines import lines
from transformer_lab.data.labelled import Parsed
from transformer_lab.data.splits import Item
from transformer_lab.errors import LabError


def read(file: Path) -> list[Item]:
    """The trees of a file; a comment "# newdoc" begins a document, which is a group. Without any,
    each sentence is its own group."""
    items, document = [], 0
    for comments, row in sentences(file):
        document += any(line.startswith("# newdoc") for line in comments)
        items.append(Item(str(document) if document else f"sentence {len(items)}", row))
    return items


def sentences(file: Path) -> Iterator[tuple[list[str], Parsed]]:
    """The comments before each sentence, and its tree.

    Lines of several words in one ("1-2 vámonos") and of words that are not said ("1.1") are no part
    of the basic tree, and are left out. Raises: LabError that names file and line for a missing
    column, a wrong number of a word or a head, a missing relation, and heads that are no tree."""
    blocks = groupby(lines(file), key=lambda line: not line[1].strip())
    for block in (list(block) for blank, block in blocks if not blank):
        comments = [text for _, text in block if text.startswith("#")]
        rows = [line for line in block if not line[1].startswith("#")]
        if words := [found for line in rows if (found := _columns(*line))]:
            yield comments, _tree(words)


def _columns(where: str, text: str) -> tuple[str, list[str]] | None:
    """The columns of a word's line, or None for a line that is no word of the basic tree."""
    columns = text.split("\t")
    if len(columns) != 10:
        found = f"{len(columns)} columns, separated by tabs"
        raise LabError(f"{where}: a line of CoNLL-U has 10 columns, this one has {found}")
    if not ID.fullmatch(columns[0]):
        raise LabError(f'{where}: "{columns[0]}" is no number of a word (3), nor 3-4 or 3.1')
    return (where, columns) if columns[0].isdigit() else None


def _tree(words: list[tuple[str, list[str]]]) -> Parsed:
    heads: list[int] = []
    for number, (where, columns) in enumerate(words, 1):
        name, form, head, label = (columns[i].strip() for i in (0, 1, 6, 7))
        if int(name) != number:
            raise LabError(f"{where}: word {name} where word {number} of its sentence is expected")
        if not form or label in ("", "_"):
            what = "relation in column 8" if form else "form in column 2"
            raise LabError(f"{where}: word {name} has no {what}")
        if not (head.isascii() and head.isdigit() and int(head) <= len(words)):
            numbers = f"give a number from 1 to {len(words)}, or 0 for the root"
            raise LabError(f'{where}: the head "{head}" of word {name} is no word: {numbers}')
        if int(head) == 0 and 0 in heads:
            first = heads.index(0) + 1
            raise LabError(f"{where}: word {name} has head 0, as word {first} has: one is the root")
        heads.append(int(head))
    for number, (where, _) in enumerate(words, 1):
        path, at = [], number
        while at and at not in path:
            path.append(at)
            at = heads[at - 1]
        if at:
            circle = ", ".join(map(str, [*path[path.index(at) :], at]))
            raise LabError(f"{where}: the heads lead in a circle and never to a root: {circle}")
    return Parsed([c[1].strip() for _, c in words], heads, [c[7].strip() for _, c in words])
