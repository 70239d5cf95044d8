"""Finds the objects of images: prints their boxes with classes and scores, and draws them.

    transformer_lab detect --workdir=runs/detect photo.jpg --output=found

A line for each object: file, class, score, and left, top, right and bottom in pixels. `--output`
is a folder for a PNG of each image with its boxes; `--json` writes an object for each image.
"""

import json
import sys
from pathlib import Path

from absl import flags

from transformer_lab import cli
from transformer_lab.errors import LabError
from transformer_lab.tasks.abilities import Detects, named_objects
from transformer_lab.training.writers import log
from transformer_lab.viewing.boxes import draw

WORDS = True  # arguments that are no flags


def define() -> None:
    cli.run_flags()
    flags.DEFINE_float("threshold", 0.5, "The least score of an object.", 0.0, 1.0)
    flags.DEFINE_string("output", "", "A folder for pictures with the boxes.")
    flags.DEFINE_bool("json", False, "Write a JSON object an image.")


def main(files: list[str]) -> int:
    args = flags.FLAGS
    if not files:
        raise LabError("no image is named: detect IMAGE ... --workdir=DIR")
    trainer, params = cli.open_run(Detects, "detect objects", "see predict")
    task = trainer.task
    sys.stdout.reconfigure(encoding="utf-8")
    failed, taken = 0, set()
    for file in files:
        try:
            image, found = task.detect(params, file, trainer.place)
        except LabError as error:
            if len(files) == 1:
                raise
            failed = 2  # the others are looked at all the same
            log(f"error: {error}")
            continue
        rows = named_objects(task, found, args.threshold)
        show(file, rows, args.json)
        if args.output:
            target = unused(Path(args.output), Path(file).stem, taken)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(draw(image, rows))
            log(f"{target} shows {file} with its boxes")
    return failed


def show(file: str, rows: list[dict], as_json: bool) -> None:
    """Prints the objects of an image, best first."""
    if as_json:
        print(json.dumps({"image": file, "objects": rows}, ensure_ascii=False), flush=True)
        return
    for row in rows:
        sides = "\t".join(f"{side:.1f}" for side in row["box"])
        print(f"{file}\t{row['label']}\t{row['score']:.3f}\t{sides}", flush=True)


def unused(folder: Path, stem: str, taken: set[Path]) -> Path:
    """FOLDER/STEM.png, or STEM-2.png and so on where an image before has that name."""
    target, number = folder / f"{stem}.png", 1
    while target in taken:
        number += 1
        target = folder / f"{stem}-{number}.png"
    taken.add(target)
    return target
