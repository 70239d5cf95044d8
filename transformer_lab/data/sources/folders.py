"""The user's own images or videos: a folder for each class."""

from os.path import relpath
from pathlib import Path
from typing import Any

import numpy as np

from transformer_lab.data.formats.lines import LICENCE, split_of, visible
from transformer_lab.data.images.sources import FoundImages, ImageSet
from transformer_lab.data.sources.files import own_path
from transformer_lab.data.splits import SPLITS
from transformer_lab.errors import LabError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".mpg", ".mpeg", ".ogv", ".gif")
Labelled = list[tuple[Path, str]]
MANY_SIZES = True  # of the images, which take the size of the model


def images(config: Any) -> FoundImages:
    """CLASS/.../image, or SPLIT/CLASS/.../image with the splits train, validation and test.

    They are videos where the config asks for frames. Hidden files and folders are ignored; val,
    valid and dev also mean validation."""
    folder = own_path(config, "your files")
    if not folder.is_dir():
        raise LabError(f"config.data.path: no folder {folder}")
    suffixes = VIDEOS if config.frames else SUFFIXES
    places = {"train": [folder]}
    if (folder / "train").is_dir():
        named = [place for place in visible(folder, "*") if place.is_dir()]
        places = {split: [p for p in named if split_of(p.name) == split] for split in SPLITS}
    if double := next((some for some in places.values() if len(some) > 1), None):
        raise LabError(f"{double[0]} and {double[1]} are both the validation split: keep one")
    return with_classes(
        {split: _classes(some[0], suffixes) for split, some in places.items() if some}, folder
    )


def _classes(folder: Path, suffixes: tuple[str, ...]) -> Labelled:
    places = [place for place in visible(folder, "*") if place.is_dir()]
    return [
        (file, place.name)
        for place in places
        for file in visible(place)
        if file.suffix.lower() in suffixes and file.is_file()
    ]


def with_classes(splits: dict[str, Labelled], folder: Path) -> FoundImages:
    """Image files with classes sorted by name, or by value if all are numbers.

    For speed, the content is identified by paths, sizes and labels, not by the pixels."""
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
        parts[split] = ImageSet([file for file, _ in rows], marks, "\n".join(known))
    return FoundImages(parts, names, 3, LICENCE)
