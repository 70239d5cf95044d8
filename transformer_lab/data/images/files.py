"""The user's own image files: a folder for each class, or a table of paths and labels."""

from os.path import relpath
from pathlib import Path

import numpy as np

from transformer_lab.data import tables
from transformer_lab.data.images.rows import Found, Part
from transformer_lab.data.user_files import LICENCE, SPLITS, split_files, split_of, visible
from transformer_lab.errors import LabError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
Labelled = list[tuple[Path, str]]


def read_folders(path: str) -> Found:
    """CLASS/.../image, or SPLIT/CLASS/.../image with the splits train, validation and test.

    Nothing hidden, at any depth, is data; val, valid and dev are names of validation.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise LabError(f"config.data.path: no folder {path}")
    places = {"train": [folder]}
    if (folder / "train").is_dir():
        named = [place for place in visible(folder, "*") if place.is_dir()]
        places = {split: [p for p in named if split_of(p.name) == split] for split in SPLITS}
    if double := next((some for some in places.values() if len(some) > 1), None):
        raise LabError(f"{double[0]} and {double[1]} are both the validation split: keep one")
    return _found({split: _classes(some[0]) for split, some in places.items() if some}, folder)


def read_table(path: str, path_column: str, label_column: str) -> Found:
    """A .csv, .tsv or .jsonl file, or a folder with one for each split.

    Paths are taken from where the table lies.
    """
    place = Path(path).expanduser()
    tables_of = {"train": place}
    if place.is_dir():
        named = split_files(place, (".csv", ".tsv", ".jsonl", ".json"))
        tables_of = {split: named[split] for split in SPLITS if split in named}
    if not tables_of.get("train", place).is_file():
        raise LabError(f"config.data.path: {path} is no .csv, .tsv or .jsonl file, nor has train's")
    rows = {split: _rows(file, path_column, label_column) for split, file in tables_of.items()}
    return _found(rows, place if place.is_dir() else place.parent)


def _classes(folder: Path) -> Labelled:
    places = [place for place in visible(folder, "*") if place.is_dir()]
    return [
        (file, place.name)
        for place in places
        for file in visible(place)
        if file.suffix.lower() in SUFFIXES and file.is_file()
    ]


def _rows(file: Path, path_column: str, label_column: str) -> Labelled:
    found = []
    for where, row in tables.rows(file):
        image = file.parent / tables.cell(row, path_column, "path", where)
        label = tables.cell(row, label_column, "label", where).strip()
        if not label or not image.is_file():
            raise LabError(f"{where}: no label" if not label else f"{where}: no file {image}")
        found.append((image, label))
    return found


def _found(splits: dict[str, Labelled], folder: Path) -> Found:
    """Classes in order; numbers by their value. Content is known by paths and sizes alone."""
    labels = {label for rows in splits.values() for _, label in rows}
    if not splits["train"]:
        raise LabError(f"{folder} holds no image to train on: see config.data.source and its path")
    number = all(label.isdecimal() for label in labels)
    names = sorted(labels, key=int if number else None)
    numbers = {label: i for i, label in enumerate(names)}
    parts = {}
    for split, rows in splits.items():
        marks = np.asarray([numbers[label] for _, label in rows], np.int64)
        known = [f"{relpath(file, folder)} {file.stat().st_size} {label}" for file, label in rows]
        parts[split] = Part([file for file, _ in rows], marks, "\n".join(known))
    return Found(parts, names, 3, LICENCE)
