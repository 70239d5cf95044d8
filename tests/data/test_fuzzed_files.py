"""Damaged files of users are read or refused in one line, within 20 seconds and 1 GiB."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import fuzz
from tests.data.images.test_sources import idx_bytes, some_images
from tests.data.test_labelled_files import UNIVERSAL, article, asked
from tests.data.test_user_files import documents, pairs, prepared
from transformer_lab.data.images.sources import ImageConfig, load_images
from transformer_lab.data.labelled import LabelledConfig, load_labelled

PAIRS = [(f"the café {i}", f"le «café» n° {i}") for i in range(6)]
PIXELS = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)


def rows(*columns: str, records: list) -> bytes:
    return "".join(json.dumps(dict(zip(columns, r, strict=True))) + "\n" for r in records).encode()


def picture(kind: str, **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, kind, **options)
    return file.getvalue()


def labelled(path: Path) -> None:
    load_labelled(LabelledConfig("files", str(path))).fingerprint()


def images(source: str, path: str) -> None:
    """All pixels, as an epoch reads them."""
    found = load_images(ImageConfig(source=source, path=path, size=(8, 8)))
    for split in (found.train, found.validation, found.test):
        for i in range(len(split)):
            split[i]


def in_class_folder(file: Path) -> None:
    images("folders", str(file.parent.parent))


def with_labels(file: Path) -> None:
    labels = file.parent / "labels"
    labels.write_bytes(idx_bytes(some_images(6)[1]))
    images("idx", f"{file},{labels}")


def as_labels(file: Path) -> None:
    pixels = file.parent / "pixels"
    pixels.write_bytes(idx_bytes(some_images(6)[0]))
    images("idx", f"{pixels},{file}")


TEXTS = [(f'The "café" {i}, is open', ["yes", "no"][i % 2]) for i in range(6)]
SQUAD = {
    "version": "v2.0",
    "data": [
        article("A", "Broncos won.", asked("q1", ("Broncos", 0), ("won", 8))),
        article("B", "No.", asked("q2", is_impossible=True), asked("q3", ("No", 0))),
        *(article(None, f"It is {i}.", asked(f"r{i}", (str(i), 6))) for i in range(3)),
    ],
}
Case = tuple[bytes, Callable[[Path], object]]
JSON: dict[str, Case] = {
    "pairs.jsonl": (rows("source", "target", records=PAIRS), pairs),
    "labelled.jsonl": (rows("text", "label", records=TEXTS), labelled),
    "values.jsonl": (
        rows("text", "label", records=[(a, len(a) + 0.5) for a, _ in TEXTS]),
        labelled,
    ),
    "squad.json": (json.dumps(SQUAD).encode(), labelled),
    "documents.jsonl": (rows("text", records=[(a,) for a, _ in TEXTS]), documents),
    "prepared.jsonl": (rows("text", records=[(a,) for a, _ in TEXTS]), prepared),
}
CSV = "text,label\n" + "".join('"{}",{}\n'.format(a.replace('"', '""'), b) for a, b in TEXTS)
TSV = "".join(f"{a}\t{b}\n" for a, b in [("text", "label"), *TEXTS])
WORDS = b"EU B-ORG\nrejects O\n\nPeter B-PER\n\nx O\n\ny O\n\nz\tO\n"
IDX = idx_bytes(some_images(6)[0])
BYTES: dict[str, Case] = {
    **JSON,
    "pairs.tsv": ("".join(f"{a}\t{b}\n" for a, b in PAIRS).encode(), pairs),
    "labelled.csv": (CSV.encode(), labelled),
    "labelled.tsv": (TSV.encode(), labelled),
    "words.conll": (WORDS, labelled),
    "universal.conll": ((UNIVERSAL * 4).encode(), labelled),
    "images-idx3": (IDX, with_labels),
    "images-idx3.gz": (gzip.compress(IDX), with_labels),
    "labels-idx1": (idx_bytes(some_images(6)[1]), as_labels),
    "a.png": (picture("PNG"), in_class_folder),
    "a.jpg": (picture("JPEG"), in_class_folder),
    "a.gif": (picture("GIF"), in_class_folder),
    "a.tiff": (picture("TIFF"), in_class_folder),
    "a.webp": (picture("WEBP"), in_class_folder),
    "a.bmp": (picture("BMP"), in_class_folder),
}  # fmt: skip


def check(name: str, folder: Path, keys: int, regions: int, seed: int) -> dict[str, list[str]]:
    content, read = BYTES[name]
    place = folder / "images" / "x" if read is in_class_folder else folder
    place.mkdir(parents=True, exist_ok=True)
    file = place / name
    file.write_bytes(content)
    read(file)  # undamaged
    cases = fuzz.of_bytes(content, seed, regions)
    if name in JSON:
        cases += fuzz.of_json(content, seed, keys)
    return fuzz.check(cases, file, lambda: read(file))


@pytest.mark.parametrize("name", BYTES)
def test_a_few_damaged_files_are_read_or_refused_in_one_line(name, tmp_path):
    assert check(name, tmp_path, keys=6, regions=6, seed=0)["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("name", BYTES)
def test_files_damaged_at_every_key_and_region_are_read_or_refused_in_one_line(name, tmp_path):
    assert check(name, tmp_path, keys=120, regions=60, seed=1)["refused"]
