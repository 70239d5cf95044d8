"""The container of GGUF files, version 2 and 3, in which llama.cpp keeps models.

Little-endian: the magic "GGUF", the version (uint32), the number of tensors and of metadata entries
(uint64 each). An entry is a name, a type (uint32, an index in SCALARS, or TEXT or LIST) and the
value; a text is its length (uint64) and bytes, a list the type of its elements, their number
(uint64) and the elements. A tensor is a name, the number of its dimensions (uint32), these (uint64
each, the innermost first), its type (uint32) and the offset of its data (uint64) from the end of
the header, which is padded to `general.alignment` bytes.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transformer_lab.errors import LabError, check_file

MAGIC, VERSIONS, ALIGNMENT = b"GGUF", (2, 3), 32
SCALARS = ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "?", None, None, "u8", "i8", "f8")
TEXT, LIST = 8, 9
MOST_DIMENSIONS = 4  # that the format knows


@dataclass(frozen=True)
class Stored:
    """A tensor in the file: its shape, outermost dimension first, its type by llama.cpp's number,
    and its bytes."""

    shape: tuple[int, ...]
    kind: int
    content: np.ndarray  # uint8, mapped from the file


class GgufFile:
    """The metadata and tensors of a file; no tensor is read before it is asked for.

    All numbers are checked against the file's size first, so that a damaged or malicious file
    costs no more memory than it is long. Raises: LabError for such a file."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._kinds = library().GGMLQuantizationType
        try:
            with check_file(self.path).open("rb") as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._place = 0
            self._read()
        except (struct.error, ValueError, IndexError, OSError) as error:
            raise LabError(f"{path}: damaged, or no GGUF file: {error}") from error

    def weights(self, name: str) -> np.ndarray:
        """A tensor's values in float32, whatever type it is stored in."""
        stored = self.tensors[name]
        kind = self._kinds(stored.kind)
        rows = stored.content.reshape(math.prod(stored.shape[:-1]), -1)
        try:
            values = library().dequantize(rows, kind)
        except NotImplementedError as error:
            raise self.error(f"{name} has the type {kind.name}, which is not read") from error
        return values.reshape(stored.shape)

    def error(self, text: str) -> LabError:
        """An error that names the file."""
        return LabError(f"{self.path}: {text}")

    def _read(self) -> None:
        if self._take(4) != MAGIC:
            raise ValueError('it does not begin with "GGUF"')
        if (version := self._number("u4")) not in VERSIONS:
            raise ValueError(f"its version is {version}, versions 2 and 3 are read")
        tensors, entries = self._number("u8"), self._number("u8")
        self.metadata: dict[str, Any] = {}
        for _ in range(self._count(entries, 12)):
            name = self._text()
            self.metadata[name] = self._value(self._number("u4"))
        places = {}
        for _ in range(self._count(tensors, 24)):
            name, count = self._text(), self._number("u4")
            if count > MOST_DIMENSIONS or name in places:
                raise ValueError(f"tensor {name} has {count} dimensions, or comes twice")
            shape = tuple(self._number("u8") for _ in range(count))[::-1]
            places[name] = shape, self._number("u4"), self._number("u8")
        alignment = self.metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= 2**20:
            raise ValueError(f"general.alignment is {alignment!r}")
        start = -(-self._place // alignment) * alignment
        self.tensors = {name: self._stored(name, *place, start) for name, place in places.items()}
        self._refuse_overlaps(places)

    def _stored(self, name: str, shape: tuple[int, ...], kind: int, offset: int, start: int):
        """A tensor whose bytes all lie in the file."""
        size = math.prod(shape)
        block, width = library().GGML_QUANT_SIZES[self._kinds(kind)]
        if not size or (shape[-1] if shape else 1) % block:
            raise ValueError(f"tensor {name} has the shape {shape}, in blocks of {block}")
        end = start + offset + size // block * width
        if end > len(self._content):
            raise ValueError(f"the data of {name} end {end - len(self._content):,} bytes behind it")
        content = np.frombuffer(self._content, np.uint8, size // block * width, start + offset)
        return Stored(shape, kind, content)

    def _refuse_overlaps(self, places: dict[str, tuple]) -> None:
        """Tensors that share bytes could ask for far more memory than the file has."""
        end = 0
        for offset, name in sorted((place[2], name) for name, place in places.items()):
            if offset < end:
                raise ValueError(f"the data of {name} overlap another tensor's")
            end = offset + self.tensors[name].content.size

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind != LIST:
            return self._number(self._scalar(kind))
        kind, count = self._number("u4"), self._number("u8")
        if kind == TEXT:
            return [self._text() for _ in range(self._count(count, 8))]
        dtype = np.dtype(f"<{self._scalar(kind)}")
        found = self._take(self._count(count, dtype.itemsize) * dtype.itemsize)
        return np.frombuffer(found, dtype).tolist()

    def _scalar(self, kind: int) -> str:
        if kind >= len(SCALARS) or SCALARS[kind] is None:
            raise ValueError(f"{kind} is no type of a value")
        return SCALARS[kind]

    def _number(self, kind: str) -> Any:
        dtype = np.dtype(f"<{kind}")
        return np.frombuffer(self._take(dtype.itemsize), dtype)[0].item()

    def _text(self) -> str:
        return self._take(self._number("u8")).decode()

    def _count(self, count: int, least: int) -> int:
        """The count, if so many things of at least so many bytes can follow."""
        if count * least > len(self._content) - self._place:
            raise ValueError(f"it says that {count:,} entries follow, and is too short for them")
        return count

    def _take(self, count: int) -> bytes:
        if count > len(self._content) - self._place:
            raise ValueError("it ends too early")
        self._place += count
        return self._content[self._place - count : self._place]


def library() -> Any:
    """The gguf library, which knows the types of weights; LabError if it is not installed."""
    try:
        import gguf
    except ImportError:
        raise LabError("reading GGUF files needs `pip install gguf`") from None
    return gguf
