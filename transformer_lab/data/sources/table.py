"""The user's own images: a table of paths and labels."""

from pathlib import Path
from typing import Any

from transformer_lab.data.formats import tables
from transformer_lab.data.formats.lines import split_files
from transformer_lab.data.images.sources import FoundImages
from transformer_lab.data.sources.files import own_path
from transformer_lab.data.sources.folders import Labelled, with_classes
from transformer_lab.data.splits import SPLITS
from transformer_lab.errors import LabError

MANY_SIZES = True  # of the images, which take the size of the model


def images(config: Any) -> FoundImages:
    """A .csv, .tsv or .jsonl file, or a folder with one for each split.

    Paths of images are relative to the table's folder."""
    place = own_path(config, "your files")
    tables_of = {"train": place}
    if place.is_dir():
        named = split_files(place, (".csv", ".tsv", ".jsonl", ".json"))
        tables_of = {split: named[split] for split in SPLITS if split in named}
    if not tables_of.get("train", place).is_file():
        raise LabError(
            f"config.data.path: {config.path} is no .csv, .tsv or .jsonl file, nor has train's"
        )
    rows = {
        split: _rows(file, config.path_column, config.label_column)
        for split, file in tables_of.items()
    }
    return with_classes(rows, place if place.is_dir() else place.parent)


def _rows(file: Path, path_column: str, label_column: str) -> Labelled:
    found = []
    for where, row in tables.rows(file):
        image = file.parent / tables.cell(row, path_column, "path", where)
        label = tables.cell(row, label_column, "label", where).strip()
        if not label or not image.is_file():
            raise LabError(f"{where}: no label" if not label else f"{where}: no file {image}")
        found.append((image, label))
    return found
