"""Tagged sentences in columns: a word a line, its tag beside it, a blank line between sentences."""

from itertools import groupby
from pathlib import Path

from transformer_lab.data.labelled_rows import Item, Tagged
from transformer_lab.data.user_files import lines
from transformer_lab.errors import LabError


def read(file: Path, text_column: str = "text", label_column: str = "label") -> list[Item]:
    """The sentences of a file; a column is a number from 1, by default the first and the last.

    Columns are parted by tabs where a line has one, else by white space. A line whose word is
    -DOCSTART- begins a document, which is a group; without any, a sentence is its own. Raises
    LabError that names file and line where a column is missing.
    """
    columns = [_column("text", text_column, 0), _column("label", label_column, -1)]
    items, document = [], 0
    blocks = groupby(lines(file), key=lambda line: not line[1].strip())
    for block in (list(block) for blank, block in blocks if not blank):
        if block[0][1].startswith("-DOCSTART-"):
            document, block = document + 1, block[1:]
        pairs = [_pair(line, columns, f"{file}:{number}") for number, line in block]
        if pairs:
            words, tags = map(list, zip(*pairs, strict=True))
            group = str(document) if document else f"sentence {len(items)}"
            items.append(Item(group, Tagged(words, tags)))
    return items


def _column(role: str, name: str, default: int) -> int:
    if name == role:  # the name that it has in a table
        return default
    if not (name.isascii() and name.isdigit() and int(name)):
        raise LabError(
            f'config.data.{role}_column = "{name}": a column of tagged words is a number from 1'
        )
    return int(name) - 1


def _pair(line: str, columns: list[int], where: str) -> tuple[str, str]:
    fields = [field.strip() for field in line.split("\t")] if "\t" in line else line.split()
    need = max(2, *(column + 1 for column in columns))
    pair = tuple(fields[column] for column in columns) if len(fields) >= need else ("", "")
    if not all(pair):
        raise LabError(f"{where}: expected a word and its tag in {need} columns, found {line!r}")
    return pair
