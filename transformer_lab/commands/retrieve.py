"""Finds the images of a folder that fit a text best.

    transformer_lab retrieve --workdir=runs/clip --images=DIR --query="a smiling face"

It prints cosines and files, best first, and draws the query above them, each with its cosine and
name, in `--target` (retrieved.png). Files that cannot be read as images are named and left out.
"""

import sys
from pathlib import Path

import numpy as np
from absl import flags
from jaxtyping import UInt8

from transformer_lab import cli
from transformer_lab.commands.zero_shot import open_towers
from transformer_lab.data.formats.lines import visible
from transformer_lab.data.images.reading import read_image
from transformer_lab.data.nearest import nearest
from transformer_lab.errors import LabError
from transformer_lab.training.writers import log
from transformer_lab.viewing import sheet

KINDS = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"}
GROUP = 1024  # images that are in memory at once


def define() -> None:
    cli.run_flags()
    flags.DEFINE_string("images", "", "A folder of images; those in its folders count too.")
    flags.DEFINE_string("query", "", "What the images should show.")
    flags.DEFINE_string(
        "target", "retrieved.png", "The picture to write, of the query and what was found."
    )
    flags.DEFINE_integer("count", 16, "How many images to show.", lower_bound=1)


def main(_: list[str]) -> None:
    args = flags.FLAGS
    if not args.images or not args.query:
        raise LabError('give --images=DIR and --query="a smiling face"')
    trainer, params = open_towers()
    task, place = trainer.task, trainer.place
    kept, vectors = images_of_folder(Path(args.images), task, params, place)
    query = task.text_vectors(params, [args.query], place)
    (near,), (best,) = nearest(query, vectors, args.count)
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    for score, i in zip(near, best, strict=True):
        print(f"{score:.4f}\t{kept[i]}")
    files = [kept[i] for i in best]
    images = [read_image(file, size=(sheet.CELL, sheet.CELL)) for file in files]
    names = [f"{score:.3f} {file.name}" for score, file in zip(near, files, strict=True)]
    sheet.draw(args.query, images, names).save(args.target)
    log(f"the {len(best)} best of {len(kept)} images: {args.target}")


def images_of_folder(folder: Path, task, params, place) -> tuple[list[Path], np.ndarray]:
    """The image files of a folder and of its folders that are whole, and their vectors [n, d].

    Raises: LabError if there is none."""
    files = [p for p in visible(folder) if p.suffix.lower() in KINDS]
    if not files:
        raise LabError(f"{folder}: no image file lies there")
    kept, parts = [], []
    for first in range(0, len(files), GROUP):
        images = read_whole(task, files[first : first + GROUP], kept)
        parts.append(task.image_vectors(params, images, place))
    if not kept:
        raise LabError(f"{folder}: none of {len(files)} files is a whole image")
    return kept, np.concatenate(parts)


def read_whole(task, files: list[Path], kept: list[Path]) -> UInt8[np.ndarray, "n h w c"]:
    """The images that can be read; their files are added to `kept`, the others are logged."""
    found = [np.zeros((0, *task.size, task.model_config.tower.channels), np.uint8)]
    for file in files:
        try:
            found.append(task.read_images([file]))
            kept.append(file)
        except LabError as error:
            log(f"left out: {error}")
    return np.concatenate(found)
