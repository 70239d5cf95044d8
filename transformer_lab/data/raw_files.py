"""Rows of text files, Parquet files and ArrayRecord files that are larger than memory.

A file is read in parts, so that several processes share one: a range of a text file's bytes, of a
Parquet file's row groups, or of an ArrayRecord file's records. Nothing larger than a row, or than
one row group, is in memory at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_lab.data.user_files import (
    SPLITS,
    check_packed,
    json_pair,
    parse_json,
    split_of,
    visible,
)
from transformer_lab.errors import LabError

SUFFIXES = {
    "pairs": (".tsv", ".jsonl", ".json", ".parquet", ".array_record", ".arrayrecord"),
    "documents": (".txt", ".jsonl", ".json", ".parquet", ".array_record", ".arrayrecord"),
}
Row = tuple[str, ...]  # (source, target), or (document,)


@dataclass(frozen=True)
class Part:
    """What one process reads at a time: bytes, row groups or records of a file, by its suffix.

    `size` is about the number of its bytes. A row that begins in the part belongs to it whole.
    """

    file: str
    begin: int
    end: int
    size: int


def find(path: str, kind: str) -> dict[str, list[Path]] | None:
    """The files of each split; only "train" where the path names no splits of its own.

    The path is a file, a pattern such as "data/*.jsonl", or a folder: of files, or of train,
    validation and test, each a file or a folder of files. None for what has no parts: a folder of
    .txt files, each of which is a document, two parallel files, or files of other kinds.
    """
    place = Path(path).expanduser()
    entries = visible(place, "*", SUFFIXES[kind]) if place.is_dir() else []
    if "train" in {entry.stem for entry in entries}:
        named = [(split_of(entry.stem), [entry]) for entry in entries]
        other = [entry.name for entry in entries if split_of(entry.stem) not in SPLITS]
        if other:
            raise LabError(f"{place} holds train and also {other[0]}: it may hold splits alone")
    elif place.exists() or not place.parent.is_dir():
        named = [("train", [place])]
    else:
        named = [("train", sorted(place.parent.glob(place.name)))]
    found: dict[str, list[Path]] = {}
    for split, places in named:
        for entry in places:
            files = visible(entry, kinds=SUFFIXES[kind]) if entry.is_dir() else [entry]
            known = [f for f in files if f.suffix in SUFFIXES[kind] and f.is_file()]
            if not known or entry.is_dir() and known[0].suffix == ".txt":
                return None
            found.setdefault(split, []).extend(known)
    return found or None


def parts_of(file: Path, size: int) -> list[Part]:
    """The file in parts of about `size` bytes, in order."""
    whole = file.stat().st_size
    units = whole
    if file.suffix == ".parquet":
        units = _parquet(file).num_row_groups
    elif file.suffix in (".array_record", ".arrayrecord"):
        units = _array_record(file).num_records()
    count = max(1, min(units, -(-whole // size)))
    edges = [units * i // count for i in range(count + 1)]
    return [Part(str(file), a, b, whole // count) for a, b in zip(edges, edges[1:], strict=False)]


def read(part: Part, kind: str, names: Row) -> Iterator[Row]:
    """The rows of a part, texts as they stand. `names` are the languages of pairs.

    Raises: LabError that names the file and the place of what cannot be read.
    """
    file = Path(part.file)
    if file.suffix == ".tsv":
        yield from (_fields(line, where) for where, line in _lines(part) if line.strip())
    elif file.suffix == ".txt":
        yield from ((text,) for text in _blocks(part))
    else:
        make = _pair if kind == "pairs" else _document
        for where, record in _records(part):
            yield make(record, names, where)


def _fields(line: str, where: str) -> Row:
    fields = tuple(line.split("\t"))
    if len(fields) != 2:
        raise LabError(f"{where}: expected source<TAB>target, found {len(fields)} fields")
    return fields


def _pair(record: Any, names: Row, where: str) -> Row:
    return json_pair(record, *names, where)


def _document(record: Any, _: Row, where: str) -> Row:
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise LabError(f'{where}: expected an object with a string "text"')
    return (record["text"],)


def _records(part: Part) -> Iterator[tuple[str, Any]]:
    file, numbers = Path(part.file), range(part.begin, part.end)
    if file.suffix == ".parquet":
        for group in numbers:
            rows = _parquet(file).read_row_group(group).to_pylist()
            yield from ((f"{file}: row {i} of group {group}", row) for i, row in enumerate(rows))
        return
    if file.suffix in (".array_record", ".arrayrecord"):
        reader = _array_record(file)
        reader.seek(part.begin)
        found = ((f"{file}: record {number}", reader.read()) for number in numbers)
    else:
        found = ((where, line) for where, line in _lines(part) if line.strip())
    for where, content in found:
        yield where, parse_json(content, where)


def _blocks(part: Part) -> Iterator[str]:
    """Documents between blank lines; one belongs to the part that holds the blank line before."""
    block: list[str] = []
    owned = part.begin == 0
    for place, line in _text_lines(part):
        if line.strip():
            if owned:
                block.append(line)
            elif place >= part.end:
                break
            continue
        if block:
            yield "\n".join(block)
            block = []
        owned = place < part.end
        if not owned:
            break
    if block:
        yield "\n".join(block)


def _lines(part: Part) -> Iterator[tuple[str, str]]:
    """The lines that begin in the part, each with its place in words."""
    for place, line in _text_lines(part):
        if place >= part.end:
            break
        yield f"{part.file}: the line at byte {place}", line


def _text_lines(part: Part) -> Iterator[tuple[int, str]]:
    """The first byte and the text of each line from the part's first on, to the end of the file."""
    with open(part.file, "rb") as stream:
        place = part.begin
        if place:  # the byte before tells whether a line begins here
            stream.seek(place - 1)
            place += len(stream.readline()) - 1
        for raw in stream:
            if place == 0:
                check_packed(raw, part.file)
            text = raw.removeprefix(b"\xef\xbb\xbf") if place == 0 else raw
            try:
                yield place, text.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                raise LabError(
                    f"{part.file}: not UTF-8 (byte 0x{text[error.start]:02x} in the line at byte "
                    f"{place}); save it as UTF-8"
                ) from error
            place += len(raw)


def _parquet(file: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise LabError("Parquet files need `pip install 'transformer_lab[parquet]'`") from None
    try:
        return parquet.ParquetFile(file)
    except Exception as error:  # pyarrow has many kinds of its own
        raise LabError(f"{file} is no Parquet file: {str(error).splitlines()[0]}") from error


def _array_record(file: Path) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(str(file))
    if not reader.ok():  # what is wrong shows at the first use alone
        raise LabError(f"{file} is no ArrayRecord file, or a damaged one")
    return reader
