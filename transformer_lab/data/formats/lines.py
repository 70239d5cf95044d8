"""What readers of users' files share: lines, JSON, the files of a folder, names of splits."""

import json
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from transformer_lab.data.splits import SPLITS
from transformer_lab.errors import LabError
from transformer_lab.text.tokenizer import clean

LICENCE = "your own files"
JSON_LINES = (".jsonl", ".json")
_ALSO = dict.fromkeys(("val", "valid", "dev"), "validation")
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}


def split_of(name: str) -> str:
    """The split that a file or folder is named after; val, valid and dev are "validation"."""
    return _ALSO.get(name, name)


def visible(folder: Path, pattern: str = "**/*", kinds: Container[str] = ()) -> list[Path]:
    """The sorted files and folders in a folder that match, without hidden ones at any depth.

    Raises: LabError for a compressed file of one of the wanted kinds (suffixes)."""
    found = sorted(folder.glob(pattern))
    found = [p for p in found if not any(s[0] == "." for s in p.relative_to(folder).parts)]
    for path in found:
        if path.suffix in (".gz", ".bz2", ".xz", ".zip") and Path(path.stem).suffix in kinds:
            raise LabError(f"{path} is compressed: unpack it first, or move it away")
    return found


def split_files(folder: Path, kinds: Container[str]) -> dict[str, Path]:
    """The files of these kinds (suffixes) in a folder, by their split, else by their name.

    Raises: LabError if two files belong to one split."""
    files: dict[str, Path] = {}
    for file in visible(folder, "*", kinds):
        name = split_of(file.stem)
        if file.suffix in kinds and file.is_file():
            if name in SPLITS and name in files:
                both = f"both {files[name].name} and {file.name}"
                raise LabError(f"{folder} has {both}: it needs one of them as {name}")
            files[name] = file
    return files


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of a JSON text; lone surrogates, which no encoding can hold, become U+FFFD.

    Raises: LabError with `where` in front for a text that is not JSON, is nested too deeply, or has
    an object with the same key twice."""
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


def lines(file: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file, each as its location for messages, "FILE:NUMBER", and its text."""
    return ((where, line) for _, where, line in lines_from(file))


def lines_from(file: Path, begin: int = 0) -> Iterator[tuple[int, str, str]]:
    """First byte, location and text of each line that begins at the byte `begin` or later.

    A line is UTF-8 whatever the locale, and ends with LF or CRLF only. Its location has its number
    if the file is read from the start, else its first byte. LabError for other encodings."""
    try:
        stream = file.open("rb")
    except OSError as error:
        raise LabError(f"config.data.path: cannot read {file} ({error.strerror})") from error
    with stream:
        at = begin
        if at:  # whether a line begins here depends on the byte before
            stream.seek(at - 1)
            at += len(stream.readline()) - 1
        for number, raw in enumerate(stream, 1):
            where = f"{file}: the line at byte {at}" if begin else f"{file}:{number}"
            content = raw
            if at == 0:
                for magic, kind in _PACKED.items():
                    if raw.startswith(magic):
                        raise LabError(f"{file} is compressed ({kind}): unpack it first")
                content = raw.removeprefix(b"\xef\xbb\xbf")
            try:
                yield at, where, content.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                byte = f"byte 0x{content[error.start]:02x} at column {error.start + 1}"
                raise LabError(f"{where}: not UTF-8 ({byte}); save it as UTF-8") from error
            at += len(raw)
