"""Tagged sentences in columns: a word and its tag on each line, blank lines between sentences."""

import re
from itertools import groupby
from pathlib import Path

from transformer_lab.data.formats.lines import lines
from transformer_lab.data.labelled import Tagged
from transformer_lab.data.splits import Item
from transformer_lab.errors import LabError

ID = re.compile(r"\d+([-.]\d+)?")  # the id of a line in CoNLL-U


def read(file: Path, text_column: str = "text", label_column: str = "label") -> list[Item]:
    """The sentences of a file; a column is a number from 1, by default the first and the last.

    Columns are separated by tabs if the line has any, else by spaces. A line whose word is
    -DOCSTART- begins a document, which is a group; without any, each sentence is its own group.
    CoNLL-U is recognised by its ten columns: there the default columns are the form and the part of
    speech (UPOS), "# newdoc" begins a document, and other comments and lines of several words (1-2)
    or none (1.1) are left out. Raises: LabError that names the file and line of a missing
    column."""
    names = ("text", text_column), ("label", label_column)
    plain, universal = (
        [_column(*name, default) for name, default in zip(names, defaults, strict=True)]
        for defaults in ((0, -1), (1, 3))
    )
    items, document = [], 0
    blocks = groupby(lines(file), key=lambda line: not line[1].strip())
    for block in (list(block) for blank, block in blocks if not blank):
        if block[0][1].startswith("-DOCSTART-"):
            document, block = document + 1, block[1:]
        columns = plain
        if words := _universal(block):
            document += any(line.startswith("# newdoc") for _, line in block)
            columns, block = universal, words
        pairs = [_pair(line, columns, where) for where, line in block]
        if pairs:
            words, tags = map(list, zip(*pairs, strict=True))
            group = str(document) if document else f"sentence {len(items)}"
            items.append(Item(group, Tagged(words, tags)))
    return items


def _universal(block: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The lines with one word each of a CoNLL-U sentence; [] if it is in another format."""
    rows = [(where, line) for where, line in block if not line.startswith("#")]
    ids = [line.partition("\t")[0] for _, line in rows if line.count("\t") == 9]
    if len(ids) < len(rows) or not all(map(ID.fullmatch, ids)):
        return []
    return [row for row, name in zip(rows, ids, strict=True) if name.isdigit()]


def _column(role: str, name: str, default: int) -> int:
    if name == role:  # the default for tables means the default column
        return default
    if not (name.isascii() and name.isdigit() and int(name)):
        raise LabError(
            f'config.data.{role}_column = "{name}": a column of tagged words is a number from 1'
        )
    return int(name) - 1


def _pair(line: str, columns: list[int], where: str) -> tuple[str, str]:
    fields = [field.strip(" ") for field in line.split("\t" if "\t" in line else " ")]
    fields = fields if "\t" in line else [field for field in fields if field]
    need = max(2, *(column + 1 for column in columns))
    pair = tuple(fields[column] for column in columns) if len(fields) >= need else ("", "")
    if not all(pair):
        raise LabError(f"{where}: expected a word and its tag in {need} columns, found {line!r}")
    return pair
