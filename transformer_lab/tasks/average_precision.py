"""Average precision of detected boxes, as COCO's evaluation computes it (`pycocotools`)."""

import contextlib
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_lab.data.images.boxes import Boxed
from transformer_lab.errors import LabError

NAMES = {0: "ap", 1: "ap50", 2: "ap75", 3: "ap_small", 4: "ap_medium", 5: "ap_large", 8: "ar"}
BLIND = {0: "ap_any_class", 1: "ap50_any_class"}  # the class of a box does not matter


class Detections(NamedTuple):
    """The objects that were found in an image."""

    boxes: Float[np.ndarray, "n 4"]  # left, top, right, bottom in pixels of the image
    scores: Float[np.ndarray, "n"]
    labels: Int[np.ndarray, "n"]


def library() -> tuple[type, type]:
    """pycocotools' COCO and COCOeval. Raises: LabError if it is not installed."""
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise LabError(
            'average precision needs pycocotools: pip install "transformer_lab[detection]"'
        ) from error
    return COCO, COCOeval


def average_precision(
    truth: Sequence[Boxed], found: Sequence[Detections], classes: int
) -> dict[str, float]:
    """AP over the overlaps 0.5, 0.55, ..., 0.95, AP at 0.5 and at 0.75, AP of objects below 32 x 32
    pixels, below 96 x 96 and above, and the mean recall; all in 0..1, and means over classes.

    A score of nothing, such as AP of large objects where there are none, is left out. The last two
    ignore classes: every box is of one class."""
    coco_of, evaluation_of = library()
    rows = [
        {"id": i, "image_id": number, "category_id": int(label), "bbox": _sides(box),
         "area": float((box[2] - box[0]) * (box[3] - box[1])), "iscrowd": int(ignored)}
        for i, (number, box, label, ignored) in enumerate(
            ((n, *row) for n, image in enumerate(truth)
             for row in zip(image.boxes, image.labels, image.ignored, strict=True)), 1
        )
    ]  # fmt: skip
    guesses = [
        {"image_id": n, "category_id": int(label), "bbox": _sides(box), "score": float(score)}
        for n, one in enumerate(found)
        for box, score, label in zip(*one, strict=True)
    ]
    values: dict[str, float] = {}
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        for names, blind in ((NAMES, False), (BLIND, True)):
            coco = coco_of()
            coco.dataset = {
                "images": [{"id": n} for n in range(len(truth))],
                "categories": [{"id": i} for i in range(classes)],
                "annotations": rows,
                "info": {},
            }
            coco.createIndex()
            if not rows or not guesses:
                return dict.fromkeys((*NAMES.values(), *BLIND.values()), 0.0) if rows else {}
            judge = evaluation_of(coco, coco.loadRes(guesses), "bbox")
            judge.params.useCats = int(not blind)
            judge.evaluate()
            judge.accumulate()
            judge.summarize()
            found_here = {name: float(judge.stats[i]) for i, name in names.items()}
            values |= {name: value for name, value in found_here.items() if value >= 0}
    return values


def _sides(box: np.ndarray) -> list[float]:
    """Corners -> left, top, width, height."""
    left, top, right, bottom = map(float, box)
    return [left, top, right - left, bottom - top]
