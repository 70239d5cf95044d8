"""Texts in text files, JSON lines, Parquet and ArrayRecord files, which may exceed the memory.

Files are read in parts, so that several processes can share one: a range of the bytes of a text
file, of the row groups of a Parquet file, or of the records of an ArrayRecord file. At most one row
or row group is in memory at once. A row holds the two texts of a pair, or one document."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_lab.data.formats.lines import (
    JSON_LINES,
    lines_from,
    parse_json,
    split_of,
    visible,
)
from transformer_lab.data.splits import SPLITS
from transformer_lab.errors import LabError

_RECORDS = (*JSON_LINES, ".parquet", ".array_record", ".arrayrecord")
SUFFIXES = {"pairs": (".tsv", *_RECORDS), "documents": (".txt", *_RECORDS)}
Texts = tuple[str, ...]  # (source, target), or (document,)


@dataclass(frozen=True)
class Part:
    """A part of a file for one process: a range of bytes, row groups or records, by its suffix.

    `size` is about its number of bytes. A row that begins in the part belongs to it as a whole."""

    file: str
    begin: int
    end: int
    size: int


def find(path: str, kind: str) -> dict[str, list[Path]] | None:
    """The files of each split; only "train" if the path does not name splits of its own.

    The path is a file, a pattern such as "data/*.jsonl", or a folder: of files, or of train,
    validation and test, each a file or a folder of files. None for what cannot be read in parts: a
    folder of .txt files with one document each, two parallel files, or files of other kinds."""
    root = Path(path).expanduser()
    entries = visible(root, "*", SUFFIXES[kind]) if root.is_dir() else []
    if "train" in {entry.stem for entry in entries}:
        named = [(split_of(entry.stem), [entry]) for entry in entries]
        other = [entry.name for entry in entries if split_of(entry.stem) not in SPLITS]
        if other:
            raise LabError(f"{root} holds train and also {other[0]}: it may hold splits alone")
    elif root.exists() or not root.parent.is_dir():
        named = [("train", [root])]
    else:
        named = [("train", sorted(root.parent.glob(root.name)))]
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
    """Divides the file into parts of about `size` bytes, in order."""
    whole = file.stat().st_size
    units = whole
    if file.suffix == ".parquet":
        units = _parquet(file).num_row_groups
    elif file.suffix in (".array_record", ".arrayrecord"):
        units = _array_record(file).num_records()
    count = max(1, min(units, -(-whole // size)))
    edges = [units * i // count for i in range(count + 1)]
    return [Part(str(file), a, b, whole // count) for a, b in zip(edges, edges[1:], strict=False)]


def read_whole(file: Path, kind: str, names: Texts = ()) -> Iterator[Texts]:
    """The rows of a whole file; a blank line between pairs gives a pair of empty texts."""
    (part,) = parts_of(file, 2**62) if file.is_file() else [Part(str(file), 0, 1, 0)]
    return read(part, kind, names, blanks=kind == "pairs")


def read(part: Part, kind: str, names: Texts, blanks: bool = False) -> Iterator[Texts]:
    """The rows of a part, with unchanged texts. `names` are the languages of pairs.

    Raises: LabError that names the file and the location of what cannot be read."""
    file = Path(part.file)
    make = _pair if kind == "pairs" else _document
    if kind == "documents" and file.suffix not in _RECORDS:
        yield from ((text,) for text in _blocks(part))
    elif file.suffix in _RECORDS and file.suffix not in JSON_LINES:
        yield from (make(record, names, where) for where, record in _records(part))
    else:
        for at, where, line in lines_from(file, part.begin):
            if at >= part.end:
                break
            if not line.strip():
                yield from [("", "")] * blanks
            elif file.suffix in JSON_LINES:
                yield make(parse_json(line, where), names, where)
            else:
                yield _fields(line, where)


def _fields(line: str, where: str) -> Texts:
    fields = tuple(line.split("\t"))
    if len(fields) != 2:
        raise LabError(f"{where}: expected source<TAB>target, found {len(fields)} fields")
    return fields


def _pair(record: Any, names: Texts, where: str) -> Texts:
    for keys in (("source", "target"), names):
        if isinstance(record, dict) and all(isinstance(record.get(key), str) for key in keys):
            return tuple(record[key] for key in keys)
    raise LabError(
        f'{where}: expected an object with strings "source" and "target" '
        '(or "{}" and "{}")'.format(*names)
    )


def _document(record: Any, names: Texts, where: str) -> Texts:
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise LabError(f'{where}: expected an object with a string "text"')
    return (record["text"],)


def _records(part: Part) -> Iterator[tuple[str, Any]]:
    """Each record of a Parquet or ArrayRecord file, after its location for messages."""
    file, numbers = Path(part.file), range(part.begin, part.end)
    if file.suffix == ".parquet":
        for group in numbers:
            rows = _parquet(file).read_row_group(group).to_pylist()
            yield from ((f"{file}: row {i} of group {group}", row) for i, row in enumerate(rows))
        return
    reader = _array_record(file)
    reader.seek(part.begin)
    for number in numbers:
        where = f"{file}: record {number}"
        yield where, parse_json(reader.read(), where)


def _blocks(part: Part) -> Iterator[str]:
    """Documents between blank lines; each belongs to the part with the blank line before it."""
    block: list[str] = []
    owned = part.begin == 0
    for at, _, line in lines_from(Path(part.file), part.begin):
        if line.strip():
            if owned:
                block.append(line)
            elif at >= part.end:
                break
            continue
        if block:
            yield "\n".join(block)
            block = []
        owned = at < part.end
        if not owned:
            break
    if block:
        yield "\n".join(block)


def _parquet(file: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise LabError("Parquet files need `pip install 'transformer_lab[parquet]'`") from None
    try:
        return parquet.ParquetFile(file)
    except Exception as error:  # pyarrow raises many kinds
        raise LabError(f"{file} is no Parquet file: {str(error).splitlines()[0]}") from error


def _array_record(file: Path) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(str(file))
    if not reader.ok():  # errors only show when it is first used
        raise LabError(f"{file} is no ArrayRecord file, or a damaged one")
    return reader
