"""Images with the boxes of their objects: settings, splits, scaling, and batches."""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, UInt8
from PIL import Image

from transformer_lab.data.buckets import Shape
from transformer_lab.data.images.reading import read_image
from transformer_lab.data.pipeline import Batch
from transformer_lab.data.splits import SPLITS, SourceConfig, Splits, read, shuffled
from transformer_lab.errors import LabError, at_least


@dataclass(frozen=True)
class BoxConfig(SourceConfig):
    """Settings of images with boxes: the source, its files, the images' size, and the splits."""

    source: str = "stamps"  # stamps | coco | voc
    path: str = ""  # local copy of the set, or the user's folder or file
    images: str = ""  # the folder of the images that COCO's JSON names; "": that of the JSON
    # Images are scaled until the shorter side has `shortest` pixels, but the longer one at most
    # `longest`, and padded on the right and below to squares of `longest` pixels.
    shortest: int = 128
    longest: int = 128  # pixels that the longer side has at most
    scenes: int = 200_000  # generated for training; so many that hardly one is seen twice
    held_scenes: int = 500  # generated for validation, and for the test
    objects: int = 4  # the most objects that are pasted into a scene
    validation_share: float = 0.15  # of stamps or images; splits that the set has stay as they are
    test_share: float = 0.15  # held out for the final scores
    split_seed: int = 0  # another number holds out others

    KIND = "boxed"

    def __post_init__(self):
        super().__post_init__()
        at_least(self, "config.data", 1, "shortest", "scenes", "held_scenes", "objects")
        if self.longest < self.shortest:
            raise LabError(f"config.data.longest = {self.longest} is below shortest")


class Boxed(NamedTuple):
    """An image with its objects; a box is left, top, right and bottom in pixels of the image."""

    image: UInt8[np.ndarray, "h w _"]  # RGB
    boxes: Float32[np.ndarray, "n 4"]
    labels: Int32[np.ndarray, "n"]  # class numbers
    ignored: Bool[np.ndarray, "n"]  # crowds and difficult objects: neither learned nor scored
    name: str = ""


class Listed(NamedTuple):
    """What an annotation file says of an image; `where` names its place in that file."""

    file: Path
    size: tuple[int, int]  # height, width
    boxes: Float32[np.ndarray, "n 4"]
    labels: Int32[np.ndarray, "n"]
    ignored: Bool[np.ndarray, "n"]
    where: str

    @classmethod
    def of(
        cls, file: Path, size: tuple[int, int], boxes: list, labels: list, ignored: list, where: str
    ) -> "Listed":
        """The same from lists, which may be empty."""
        found = np.array(boxes, np.float32).reshape(-1, 4)
        return cls(file, size, found, np.array(labels, np.int32), np.array(ignored, bool), where)

    def read(self) -> Boxed:
        """Reads the image. Raises: LabError if it is damaged or has another size."""
        image = read_image(self.file)
        if image.shape[:2] != self.size:
            (h, w), (height, width) = image.shape[:2], self.size
            raise LabError(
                f"{self.where}: {self.file.name} is {w} x {h} pixels upright, not {width} x "
                f"{height}: its boxes are of another image"
            )
        return Boxed(image, self.boxes, self.labels, self.ignored, self.file.name)


class Listing(Sequence):
    """The annotated images of a split, each read when it is asked for."""

    def __init__(self, rows: Sequence[Listed]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Boxed:
        return self.rows[index].read()


class FoundBoxes(NamedTuple):
    """A source's result: lists of `Listed`, or finished sequences of `Boxed` for all splits."""

    parts: dict[str, Sequence]
    names: list[str]  # of the classes
    licence: str
    content: str = ""  # text that differs where the data does; of lists it is made from them
    report: dict[str, int] = {}  # objects that were left out, by reason


@dataclass(frozen=True)
class BoxSplits(Splits):
    """The images of each split; `labels` are the names of the classes by number."""

    content: str = ""

    def fingerprint(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()


def load_boxes(config: BoxConfig) -> BoxSplits:
    """The images of a config; the same for every run with that config. Each file is decoded once,
    so that no damaged one stops a run later."""
    found: FoundBoxes = read(config)
    parts = dict(found.parts)
    if isinstance(parts["train"], list):
        wanted = {"test": config.test_share, "validation": config.validation_share}
        for split, share in wanted.items():
            if split not in parts:
                by_name = {str(row.file): row for row in parts["train"]}
                count = max(1, round(share * len(by_name))) if share else 0
                some = set(shuffled(list(by_name), config.split_seed)[:count])
                parts[split] = [row for name, row in by_name.items() if name in some]
                parts["train"] = [row for name, row in by_name.items() if name not in some]
        if not parts["train"]:
            raise LabError(
                f"{config.path}: config.data.validation_share = {config.validation_share} and "
                f"test_share = {config.test_share} leave no image to train on"
            )
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(lambda row: row.read() and None, sum(parts.values(), [])):
                pass
        parts = {split: Listing(rows) for split, rows in parts.items()}
    report = {"read": sum(map(len, parts.values())), **found.report}
    report |= {split: len(parts[split]) for split in SPLITS}
    content = found.content or " ".join(
        f"{split} {row.file.name} {row.size} {row.boxes.tolist()} {row.labels} {row.ignored}"
        for split in SPLITS for row in parts[split].rows
    )  # fmt: skip
    form = f"{content} {found.names} {config.shortest} {config.longest}"
    return BoxSplits(**parts, report=report, licence=found.licence, labels=found.names,
                     content=form)  # fmt: skip


def clipped(box: Sequence[int | float], height: int, width: int) -> list[float] | None:
    """The part of a box (corners) that is in the image; None if it is no box of finite numbers, or
    its right or lower side comes before the other one."""
    if not np.isfinite(box).all() or box[2] < box[0] or box[3] < box[1]:
        return None
    return np.clip(np.array(box, float), 0, [width, height] * 2).tolist()


def scaled(image: UInt8[np.ndarray, "h w c"], shortest: int, longest: int) -> np.ndarray:
    """The image with its shorter side at `shortest` pixels, or its longer one at `longest`, if that
    is the smaller; 100 x 200 pixels become 64 x 128 for 128 and 128. The longer side is rounded
    down, as in the reference implementation."""
    h, w = image.shape[:2]
    least, most = min(h, w), max(h, w)
    short = min(shortest, longest * least / most)
    longer, shorter = int(short * most / least + 1e-6), max(1, round(short))
    size = (longer, shorter) if w >= h else (shorter, longer)
    if size == (w, h):
        return image
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))


def to_shares(
    boxes: Float32[np.ndarray, "n 4"], size: tuple[int, int]
) -> Float32[np.ndarray, "n 4"]:
    """Corners in pixels -> the centre's column and row, width and height as shares of the image."""
    shares = boxes / np.array([size[1], size[0]] * 2, np.float32)
    start, end = shares[:, :2], shares[:, 2:]
    return np.concatenate([(start + end) / 2, end - start], axis=1).astype(np.float32)


def load(
    ids: Int64[np.ndarray, "rows *draw"],
    shape: Shape,
    images: Sequence[Boxed],
    config: BoxConfig,
    most: int,
    flip: float = 0.0,
) -> Batch:
    """`image` uint8 [rows, longest, longest, 3] with its real `size` [rows, 2] (height, width),
    `boxes` [rows, most, 4] as shares of the real part, `label` int32 [rows, most] (-1: no object)
    and `mask` [rows]. Ids are image numbers, -1 for padding; random seeds beside them decide which
    images are mirrored, with the probability `flip`."""
    ids, side = ids.reshape(len(ids), -1), config.longest
    image = np.zeros((len(ids), side, side, 3), np.uint8)
    size = np.full((len(ids), 2), side, np.int32)
    boxes = np.zeros((len(ids), most, 4), np.float32)
    label = np.full((len(ids), most), -1, np.int32)
    for place in np.flatnonzero(ids[:, 0] >= 0).tolist():
        row = images[int(ids[place, 0])]
        small = scaled(row.image, config.shortest, config.longest)
        kept = ~row.ignored
        shares, labels = to_shares(row.boxes, row.image.shape[:2])[kept], row.labels[kept]
        if len(labels) > most:
            raise LabError(
                f"{row.name} has {len(labels)} objects, but the batches hold {most}: raise "
                "batch.objects, and model.queries with it"
            )
        if flip and np.random.default_rng(int(ids[place, 1])).random() < flip:
            small, shares = small[:, ::-1], shares * [-1, 1, 1, 1] + [1, 0, 0, 0]
        image[place, : small.shape[0], : small.shape[1]] = small
        size[place] = small.shape[:2]
        boxes[place, : len(labels)], label[place, : len(labels)] = shares, labels
    return {"image": image, "size": size, "boxes": boxes, "label": label, "mask": ids[:, 0] >= 0}


def in_order(
    images: Sequence[Boxed], config: BoxConfig, rows: int, most: int
) -> Iterator[tuple[list[Boxed], Batch]]:
    """Batches of all images in order, each with its images' objects, whose `image` has no pixels
    but the size; padding rows complete the last batch."""
    for first in range(0, len(images), rows):
        some = [images[i] for i in range(first, min(first + rows, len(images)))]
        ids = np.arange(rows)
        ids[len(some) :] = -1
        bare = [row._replace(image=np.zeros((*row.image.shape[:2], 0), np.uint8)) for row in some]
        yield bare, load(ids, (1,), some, config, most)
