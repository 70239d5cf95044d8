"""Labelled texts in the user's tables: CSV, TSV and JSON lines with named columns."""

import csv
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

from transformer_lab.data.formats.lines import JSON_LINES, lines, parse_json
from transformer_lab.data.labelled import Example
from transformer_lab.data.splits import Item, key
from transformer_lab.errors import LabError, nearest

csv.field_size_limit(2**31 - 1)  # no limit on the length of a field, as in JSON lines
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def read(file: Path, text_column: str, pair_column: str, label_column: str) -> list[Item]:
    """The rows of a .csv, .tsv or .jsonl file; "" as the pair or label column means none.

    Labels are text (see `values`). Each text is its own group. Raises: LabError that names the file
    and line of a missing column, a malformed row or a row without a label."""
    settings = (("text", text_column), ("pair", pair_column), ("label", label_column))
    items = []
    for where, row in rows(file):
        texts = {
            role: cell(row, column, role, where) if column or role == "text" else None
            for role, column in settings
        }
        if texts["label"] is not None:
            _check_label(texts["label"].strip(), f'{where}: its "{label_column}"')
        items.append(Item(key(texts["text"]), Example(**texts)))
    return items


def rows(file: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Each row of a .csv, .tsv, .jsonl or .json file (as JSON lines), after its location."""
    return _json_rows(file) if file.suffix in JSON_LINES else _table_rows(file)


def holds_rows(file: Path) -> bool:
    """Whether the first line of a .json file is a row of its own, unlike in a set of questions."""
    line = next((line for _, line in lines(file) if line.strip()), "")
    try:
        row = parse_json(line, "")
    except LabError:
        return False
    return isinstance(row, dict) and "data" not in row


def _check_label(label: str, where: str) -> None:
    if not label:
        raise LabError(f"{where} is empty")
    number = label == "Infinity" or label == "-Infinity" or _NUMBER.fullmatch(label)
    if number and not math.isfinite(float(label)):
        raise LabError(f"{where} is {label[:40]}, which is no finite number")


def cell(row: dict[str, object], column: str, role: str, where: str) -> str:
    """The text in a row's column, which config.data.{role}_column names; else raises LabError."""
    if column not in row:
        raise LabError(
            f'{where}: no column "{column}"{nearest(column, row)}; set config.data.{role}_column'
        )
    value = row[column]
    if isinstance(value, str):
        return value
    if role == "label" and isinstance(value, bool | int | float):
        return json.dumps(value)
    raise LabError(f'{where}: its "{column}" is {json.dumps(value)[:40]}, not text')


def _table_rows(file: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """The rows of a CSV or TSV file, by column; quotes have a meaning in CSV only."""
    style = "excel-tab" if file.suffix == ".tsv" else "excel"
    quoting = csv.QUOTE_NONE if file.suffix == ".tsv" else csv.QUOTE_MINIMAL
    content = (f"{line}\n" for _, line in lines(file))
    reader = csv.reader(content, style, quoting=quoting, strict=True)
    header: list[str] = []
    last = count = 0  # the line that the row before ends with, and the number of rows
    try:
        for fields in reader:
            where, last = f"{file}:{reader.line_num}", reader.line_num
            if not header:
                header = [name.strip() for name in fields]
                if twice := [name for name in header if name and header.count(name) > 1]:
                    raise LabError(f'{where}: two columns are named "{twice[0]}": rename one')
            elif len(fields) == len(header):
                count += 1
                yield where, dict(zip(header, fields, strict=True))
            elif any(map(str.strip, fields)):
                raise LabError(
                    f"{where}: {len(fields)} fields, but the header has {len(header)} columns"
                )
    except csv.Error as error:
        if "unexpected end" in str(error):
            raise LabError(f"{file}:{last + 1}: a quote of this row is never closed") from error
        raise LabError(f"{file}:{reader.line_num}: malformed ({error})") from error
    if not count:
        raise LabError(f"{file}:{max(last, 1)}: no row follows the names of the columns")


def _json_rows(file: Path) -> Iterator[tuple[str, dict[str, object]]]:
    for where, line in lines(file):
        if line.strip():
            row = parse_json(line, where)
            if not isinstance(row, dict):
                raise LabError(f"{where}: expected an object")
            yield where, row


def values(labels: list[str | None]) -> list[str | float | None]:
    """The labels as numbers if all are numbers and any has a point or exponent, else as classes.

    So 0 and 1 are two classes, while 0.0 and 1.0 are two values."""
    given = [label.strip() for label in labels if label is not None]
    numbers = given and all(map(_NUMBER.fullmatch, given))
    if numbers and not all(label.lstrip("+-").isdigit() for label in given):
        return [None if label is None else float(label) for label in labels]
    return [None if label is None else label.strip() for label in labels]
