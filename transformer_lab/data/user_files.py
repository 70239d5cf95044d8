"""Sentence pairs from the user's own files: TSV, JSON lines, or two parallel text files."""

import json
from collections.abc import Iterator
from pathlib import Path

from transformer_lab.data.pairs import Report, Row, key
from transformer_lab.errors import LabError

SPLITS = ("train", "validation", "test")
LICENCE = "your own files"
Pair = tuple[str, str]


def read(path: str, source: str, target: str, report: Report) -> list[Row]:
    """The pairs of one file (`.jsonl`, else TSV) or of two ("a.en,a.fr"), in their order.

    Raises LabError that names file and line for bytes that are not UTF-8, a malformed line or
    files of unequal length.
    """
    pairs = list(_pairs(path, source, target))
    report["read"] += len(pairs)
    return [Row(key(text), text, translation) for text, translation in pairs]


def read_splits(folder: Path, source: str, target: str) -> dict[str, list[Pair]]:
    """The pairs of train, validation and test, each a .tsv or .jsonl file in the folder."""
    return {
        split: list(_pairs(str(_split_file(folder, split)), source, target)) for split in SPLITS
    }


def _split_file(folder: Path, split: str) -> Path:
    found = [file for s in (".tsv", ".jsonl") if (file := folder / f"{split}{s}").is_file()]
    if len(found) != 1:
        what, word = ("both", "and") if found else ("neither", "nor")
        raise LabError(
            f"{folder} has {what} {split}.tsv {word} {split}.jsonl: it needs one of them"
        )
    return found[0]


def _pairs(path: str, source: str, target: str) -> Iterator[Pair]:
    file = Path(path).expanduser()
    if file.is_file():
        if file.suffix in (".jsonl", ".json"):
            return _json_pairs(file, source, target)
        return _tsv_pairs(file)
    parts = [Path(part.strip()).expanduser() for part in path.split(",")]
    if len(parts) == 2:
        return _parallel_pairs(*parts)
    raise LabError(f"config.data.path: no file {path}; give FILE.tsv, FILE.jsonl or A.txt,B.txt")


def lines(file: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and lines, as UTF-8 whatever the locale, ended by LF or CRLF alone."""
    try:
        stream = file.open("rb")
    except OSError as error:
        raise LabError(f"config.data.path: cannot read {file} ({error.strerror})") from error
    with stream:
        for number, raw in enumerate(stream, 1):
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            try:
                yield number, raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                byte = f"byte 0x{raw[error.start]:02x} at column {error.start + 1}"
                raise LabError(f"{file}:{number}: not UTF-8 ({byte}); save it as UTF-8") from error


def _tsv_pairs(file: Path) -> Iterator[Pair]:
    for number, line in lines(file):
        fields = line.split("\t") if line.strip() else ["", ""]
        if len(fields) != 2:
            raise LabError(
                f"{file}:{number}: expected source<TAB>target, found {len(fields)} fields"
            )
        yield fields[0], fields[1]


def _json_pairs(file: Path, source: str, target: str) -> Iterator[Pair]:
    for number, line in lines(file):
        if not line.strip():
            yield "", ""
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise LabError(f"{file}:{number}: not JSON ({error})") from error
        yield json_pair(record, source, target, f"{file}:{number}")


def json_pair(record: object, source: str, target: str, where: str) -> Pair:
    """The two texts of a record. Raises: LabError that names the place where one is missing."""
    if isinstance(record, dict):
        for names in (("source", "target"), (source, target)):
            pair = tuple(record.get(name) for name in names)
            if all(isinstance(text, str) for text in pair):
                return pair
    raise LabError(
        f'{where}: expected an object with strings "source" and "target" '
        f'(or "{source}" and "{target}")'
    )


def _parallel_pairs(source: Path, target: Path) -> Iterator[Pair]:
    sides = [[line for _, line in lines(file)] for file in (source, target)]
    counts = [len(side) for side in sides]
    if counts[0] != counts[1]:
        longer, shorter = (source, target) if counts[0] > counts[1] else (target, source)
        raise LabError(
            f"{longer}:{min(counts) + 1}: no line of {shorter} faces it "
            f"({counts[0]} and {counts[1]} lines)"
        )
    yield from zip(*sides, strict=True)
