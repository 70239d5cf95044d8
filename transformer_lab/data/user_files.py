"""Sentence pairs from the user's own files: TSV, JSON lines, or two parallel text files.

Also what all readers of users' files share: lines, JSON, the files of a folder, names of splits.
"""

import json
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from transformer_lab.data.pairs import Report, Row, key
from transformer_lab.errors import LabError
from transformer_lab.text.tokenizer import clean

SPLITS = ("train", "validation", "test")
LICENCE = "your own files"
Pair = tuple[str, str]
JSON_LINES = (".jsonl", ".json")
_ALSO = dict.fromkeys(("val", "valid", "dev"), "validation")
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}


def split_of(name: str) -> str:
    """The split that a file or folder is named after: val, valid and dev are validation."""
    return _ALSO.get(name, name)


def visible(folder: Path, pattern: str = "**/*", kinds: Container[str] = ()) -> list[Path]:
    """The files and folders in a folder that match, in order, without what is hidden at any depth.

    Raises LabError that names a compressed file of one of the kinds (suffixes) that are looked for.
    """
    found = sorted(folder.glob(pattern))
    found = [p for p in found if not any(s[0] == "." for s in p.relative_to(folder).parts)]
    for path in found:
        if path.suffix in (".gz", ".bz2", ".xz", ".zip") and Path(path.stem).suffix in kinds:
            raise LabError(f"{path} is compressed: unpack it first, or move it away")
    return found


def split_files(folder: Path, kinds: Container[str]) -> dict[str, Path]:
    """The files of such kinds (suffixes) in a folder, by their split, or else by their name.

    Raises LabError that names two files of one split.
    """
    files: dict[str, Path] = {}
    for file in visible(folder, "*", kinds):
        name = split_of(file.stem)
        if file.suffix in kinds and file.is_file():
            if name in SPLITS and name in files:
                both = f"both {files[name].name} and {file.name}"
                raise LabError(f"{folder} has {both}: it needs one of them as {name}")
            files[name] = file
    return files


def check_packed(start: bytes, file: str | Path) -> None:
    """Refuses a file that starts as a compressed one does."""
    for magic, kind in _PACKED.items():
        if start.startswith(magic):
            raise LabError(f"{file} is compressed ({kind}): unpack it first")


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of a JSON text; lone surrogates, which no encoding can hold, become U+FFFD.

    Raises LabError that names the place of what is not JSON, nested too deeply to be read, or
    names a key of one object twice.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(text, object_pairs_hook=_object)
        if "\\ud" in text.lower():
            value = json.loads(clean(json.dumps(value, ensure_ascii=False)))
    except ValueError as error:
        raise LabError(f"{where}: not JSON ({error})") from error
    except RecursionError:
        raise LabError(f"{where}: not JSON that can be read (it is nested too deeply)") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two keys of an object are {json.dumps(twice)}")
    return found


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
    files = split_files(folder, (".tsv", *JSON_LINES))
    if missing := [split for split in SPLITS if split not in files]:
        names = f"neither {missing[0]}.tsv nor {missing[0]}.jsonl"
        raise LabError(f"{folder} has {names}: it needs one of them")
    return {split: list(_pairs(str(files[split]), source, target)) for split in SPLITS}


def _pairs(path: str, source: str, target: str) -> Iterator[Pair]:
    file = Path(path).expanduser()
    if file.is_file():
        if file.suffix in JSON_LINES:
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
                check_packed(raw, file)
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
        where = f"{file}:{number}"
        yield json_pair(parse_json(line, where), source, target, where)


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
