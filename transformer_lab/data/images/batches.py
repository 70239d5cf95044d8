"""Batches of labelled images of one shape: their order, and how the host loads them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Int64

from transformer_lab.data.batching import RowCount, RowPlan
from transformer_lab.data.buckets import Shape
from transformer_lab.data.images.augment import AugmentConfig, augment, mix
from transformer_lab.data.images.sources import Images
from transformer_lab.data.pipeline import Batch, Batches
from transformer_lab.errors import LabError, at_least


@dataclass(frozen=True)
class ImageBatchConfig(RowCount):
    """Settings of image batches: their rows, and the processes that load them."""

    rows: int = 128  # over all devices and micro-batches
    workers: int = 0  # processes that read and augment; 0: threads. The batches are the same

    def __post_init__(self):
        at_least(self, "batch", 1, "rows")
        at_least(self, "batch", 0, "workers")


def train_plan(images: Images, rows: int, seed: int) -> RowPlan:
    """A plan that shuffles the images in each epoch, with a random seed for each row."""
    if not len(images):
        raise LabError("there is no image to train on")
    return RowPlan("images True", np.ones(len(images), np.int64), 1, rows, seed)


def train_batches(
    plan: RowPlan, images: Images, config: AugmentConfig, classes: int, workers: int
) -> Batches:
    """An endless iterator over batches of augmented images; see `load`."""
    return Batches(plan, partial(load, images=images, config=config, classes=classes),
                   workers=workers)  # fmt: skip


def in_order(images: Images, rows: int) -> Iterator[Batch]:
    """Each image once, not augmented; padding rows complete the last batch."""
    for first in range(0, len(images), rows):
        ids = np.full(rows, -1)
        count = min(rows, len(images) - first)
        ids[:count] = np.arange(first, first + count)
        yield load(ids, (1,), images)


def load(
    ids: Int64[np.ndarray, "rows *draw"],
    shape: Shape,
    images: Images,
    config: AugmentConfig | None = None,
    classes: int = 0,
) -> Batch:
    """`image` uint8 [rows, h, w, c] (of clips [rows, f, h, w, c]), `label` int32 [rows] and `mask`
    [rows], True at real rows.

    Ids are image numbers, -1 for padding, and with a config random seeds beside them. If it mixes
    images, `label` is float32 [rows, classes]: the share of each class."""
    ids = ids.reshape(len(ids), -1)
    real = ids[:, 0] >= 0
    image = np.zeros((len(ids), *images.shape), np.uint8)
    label = np.zeros(len(ids), np.int32)
    for place in np.flatnonzero(real).tolist():
        row = images[int(ids[place, 0])]
        label[place] = row["label"]
        image[place] = augment(row["image"], int(ids[place, 1]), config) if config else row["image"]
    if config and config.mixes:
        label = np.eye(classes, dtype=np.float32)[label] * real[:, None]
        image[real], label[real] = mix(image[real], label[real], ids[real, 1], config)
    return {"image": image, "label": label, "mask": real}
