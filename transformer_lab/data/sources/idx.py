"""Images in IDX files, as MNIST and its successors have them, plain or gzip."""

import gzip
import hashlib
import io
import math
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from transformer_lab.data.formats.lines import LICENCE, split_of, visible
from transformer_lab.data.images.sources import FoundImages, ImageSet
from transformer_lab.data.sources.files import own_path
from transformer_lab.errors import LabError

MAX_CLASSES = 65_536  # without names, a limit, as each class is a row of the model's head
_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_NAME = re.compile(r"(?:.*-)?(train|validation|valid|val|dev|test|t10k)-(images|labels)[.-].*")


def images(config: Any) -> FoundImages:
    return read(str(own_path(config, "your files")))


def read(path: str, names: list[str] | None = None, licence: str = LICENCE) -> FoundImages:
    """The splits of a folder, at any depth, by file names such as train-images-idx3-ubyte.gz.

    t10k is the test split. Two files "IMAGES,LABELS" are the training split alone. Without `names`,
    classes are named by their numbers."""
    pairs = [Path(part.strip()).expanduser() for part in path.split(",")]
    files = {"train": dict(zip(("images", "labels"), pairs, strict=True))} if len(pairs) == 2 else (
        _named(pairs[0])
    )  # fmt: skip
    if "train" not in files or any(len(pair) < 2 for pair in files.values()):
        raise LabError(
            f"config.data.path: {path} needs train-images-idx3-ubyte and train-labels-idx1-ubyte, "
            "and such a pair for each other split; or give IMAGES,LABELS"
        )
    parts = {split: _part(pair["images"], pair["labels"]) for split, pair in files.items()}
    count = 1 + max(int(part.labels.max(initial=0)) for part in parts.values())
    if names is None:
        if count > MAX_CLASSES:
            raise LabError(f"{path}: label {count - 1:,}, but at most {MAX_CLASSES:,} are classes")
        names = [str(i) for i in range(count)]
    if count > len(names):
        raise LabError(f"{path}: label {count - 1}, but there are {len(names)} classes")
    channels = 1 if parts["train"].items.ndim == 3 else parts["train"].items.shape[3]
    return FoundImages(parts, names, channels, licence)


def read_array(file: Path) -> np.ndarray:
    """The array of an IDX file; LabError if it is cut off or of another format.

    Of a compressed file no more is unpacked than its header announces."""
    try:
        with open(file, "rb") as plain:
            packed = plain.peek(2)[:2] == b"\x1f\x8b"
            with gzip.open(plain) if packed else plain as stream:
                return _array(stream, file)
    except (OSError, EOFError, zlib.error) as error:
        raise LabError(f"{file} cannot be read ({error})") from error


def _array(stream: io.BufferedIOBase, file: Path) -> np.ndarray:
    head = stream.read(4)
    sizes = stream.read(4 * head[3]) if len(head) == 4 else b""
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _TYPES or len(sizes) < 4 * head[3]:
        raise LabError(f"{file} is no IDX file: it starts with {head.hex() or 'nothing'}")
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    kind = np.dtype(_TYPES[head[2]])
    need, data = kind.itemsize * math.prod(shape), bytearray()
    while len(data) <= need and (chunk := stream.read(1 << 20)):
        data += chunk
    if len(data) != need or len(shape) > 4:
        found = "more" if len(data) > need else f"{len(data)}"
        raise LabError(f"{file} is damaged: {found} bytes do not make {shape[:9]}")
    return np.frombuffer(bytes(data), kind).reshape(shape)


def _named(folder: Path) -> dict[str, dict[str, Path]]:
    files: dict[str, dict[str, Path]] = {}
    for file in visible(folder):
        if file.is_file() and (match := _NAME.fullmatch(file.name)):
            split = "test" if match[1] == "t10k" else split_of(match[1])
            files.setdefault(split, {}).setdefault(match[2], file)
    return files


def _part(images_file: Path, labels_file: Path) -> ImageSet:
    images, labels = read_array(images_file), read_array(labels_file)
    if images.ndim not in (3, 4) or not images.size or images.dtype != np.uint8:
        raise LabError(f"{images_file} holds no images: {images.dtype} {images.shape}")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "ui" or (labels < 0).any():
        raise LabError(
            f"{labels_file} does not label {len(images)} images: {labels.dtype} {labels.shape}"
        )
    digest = hashlib.sha256(images).hexdigest() + hashlib.sha256(labels).hexdigest()
    return ImageSet(images, labels.astype(np.int64), digest)
