"""Loads labelled images or clips from any source, split by class, and reduces them to a share."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from transformer_lab.data.images import reading
from transformer_lab.data.images.video import read_clip
from transformer_lab.data.splits import SPLITS, SourceConfig, Splits, read
from transformer_lab.errors import LabError, at_least

HELD = 2**28  # bytes of a split's images that are kept once they are read from their files


class ImageSet(NamedTuple):
    """The images of a split as uint8 arrays, paths or bytes, and the class number of each. A clip
    is an array [f, h, w, c], or the path of a video."""

    items: Any  # a sequence of images, or of clips
    labels: Any
    content: str  # text or digest that differs where the data does
    texts: Sequence[str] | None = None  # what each image shows, if the set says more than classes


class FoundImages(NamedTuple):
    """The splits that a data set has: "train", and perhaps "validation" and "test"."""

    parts: dict[str, ImageSet]
    names: list[str]  # names of the classes
    channels: int  # channels of the images, unless the config says otherwise
    licence: str


@dataclass(frozen=True)
class ImageConfig(SourceConfig):
    """Settings of images: the source, its files, their size and channels, and the splits."""

    # fashion_mnist | idx | digits | folders | table | tfds | stamp_categories | emoji |
    # moving_stamps | moving_scenes | video_tiles
    source: str = "fashion_mnist"
    path: str = ""  # local copy of the set, or the user's folder or files
    tfds_name: str = ""  # a set with the features "image" and "label"
    path_column: str = "path"  # of a table, by its header
    label_column: str = "label"  # the column of the class
    # (height, width) to which images are resized; (): the model's image_size for your own files
    # (folders, table), and for other sources the size that their images have
    size: tuple[int, ...] = ()
    channels: int = 0  # 1 grey, 3 colour; 0: as the set has them
    frames: int = 0  # of each clip, of a source that has clips; 0: images
    clips: int = 20_000  # moving_stamps, moving_scenes: of the training split
    # moving_stamps, moving_scenes: of the validation split, and of the test split; video_tiles:
    # runs of frames of each video, in all splits
    held_clips: int = 1000
    background: str = "white"  # behind what is transparent: a colour's name or #rrggbb
    validation_share: float = 0.1  # of each class; splits that the set has stay as they are
    test_share: float = 0.1  # held out for the final scores
    split_seed: int = 0  # another number holds out others
    share: float = 1.0  # of each class's training images that are used; held-out ones stay
    share_seed: int = 0  # which of them; a larger share only adds some
    skip_damaged: bool = False  # whether damaged files are left out and counted

    KIND = "images"

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise LabError(f"config.data.share = {self.share} is no share: give above 0 to 1")
        if self.channels not in (0, 1, 3):
            raise LabError(f"config.data.channels = {self.channels}: use 1 (grey) or 3 (colour)")
        if len(self.size) not in (0, 2) or min(self.size, default=1) < 1:
            raise LabError(f"config.data.size = {self.size}: give (height, width) in pixels, or ()")
        at_least(self, "data", 0, "frames")
        at_least(self, "data", 1, "clips", "held_clips")
        reading.check_colour(self.background)


class Images(Sequence):
    """A sequence of {"image": uint8 [h, w, c], "label": int}, each read when it is asked for.

    All images have the same `size` (height, width) and `channels`. With `frames` they are clips
    [f, h, w, c]."""

    def __init__(
        self,
        items: Any,
        labels: Any,
        numbers: Int[np.ndarray, "n"],
        channels: int,
        size: reading.Size = (),
        background: str = "white",
        texts: Sequence[str] | None = None,
        frames: int = 0,
    ):
        self._items, self._labels, self._numbers, self._texts = items, labels, numbers, texts
        self.channels, self.size, self._background = channels, size, background
        self._held: dict[int, np.ndarray] = {}  # images of files, by number
        self.frames = frames
        if not size and len(numbers):
            self.size = self._read(int(numbers[0])).shape[-3:-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image, or of one clip."""
        return (*([self.frames] if self.frames else ()), *self.size, self.channels)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self._numbers[index])
        return {"image": self._read(number), "label": int(self._labels[number])}

    @property
    def labels(self) -> list[int]:
        """The class number of each image, found without reading the images."""
        return [int(self._labels[number]) for number in self._numbers]

    @property
    def texts(self) -> list[str] | None:
        """What each image shows in words; None if the set says no more than classes."""
        return None if self._texts is None else [self._texts[number] for number in self._numbers]

    def classes(self) -> set[int]:
        """The class numbers that occur here; empty if labels must be read with the images."""
        if not isinstance(self._labels, np.ndarray):
            return set()
        return set(np.unique(self._labels[self._numbers]).tolist())

    def _read(self, number: int) -> np.ndarray:
        item = self._items[number]
        if self.frames:
            if not isinstance(item, np.ndarray) or item.ndim != 4:
                raise LabError(f"config.data.frames = {self.frames}, but the source has images")
            return np.stack([reading.from_array(x, self.channels, self.size) for x in item])
        if isinstance(item, np.ndarray):
            return reading.from_array(item, self.channels, self.size)
        if (held := self._held.get(number)) is not None:
            return held
        image = reading.read_image(item, self.channels, self.size, self._background)
        if image.size * len(self._numbers) <= HELD:
            self._held[number] = image
        return image


@dataclass(frozen=True)
class ImageSplits(Splits):
    """The images of each split; `labels` are the names of the classes by number."""

    content: str = ""  # SHA-256 of the data and of what the config makes of it

    def fingerprint(self) -> str:
        return self.content


def load_images(config: ImageConfig) -> ImageSplits:
    """The images of a config, fetched when first used; the same for every run with that config."""
    found: FoundImages = read(config)
    report = {"read": sum(len(part.items) for part in found.parts.values())}
    whole = {split: _whole(part, config) for split, part in found.parts.items()}
    if damaged := report["read"] - sum(len(part.items) for part in whole.values()):
        report["damaged"] = damaged
    found = found._replace(parts=whole)
    numbers = _split(found, config)
    if config.share < 1:
        count = len(numbers["train"])
        labels = np.asarray(found.parts["train"].labels)[numbers["train"]]
        chosen = _shares(labels, [config.share], config.share_seed)[0]
        numbers["train"] = np.sort(numbers["train"][chosen])
        report["over_share"] = count - len(numbers["train"])
    report |= {split: len(numbers[split]) for split in SPLITS}
    splits, channels, size = {}, config.channels or found.channels, config.size
    for split in SPLITS:
        part = found.parts.get(split, found.parts["train"])
        form = (channels, size, config.background, part.texts, config.frames)
        splits[split] = Images(part.items, part.labels, numbers[split], *form)
        size = splits[split].size  # the first training image's, for all
    digest = hashlib.sha256(f"{found.names} {channels} {size} {config.background}".encode())
    if config.frames:
        digest.update(str(config.frames).encode())
    for split in SPLITS:
        if split in found.parts:
            digest.update(found.parts[split].content.encode())
        digest.update(numbers[split].astype("<i8").tobytes() + split.encode())
    return ImageSplits(**splits, labels=found.names, report=report, licence=found.licence,
                       content=digest.hexdigest())  # fmt: skip


def _whole(part: ImageSet, config: ImageConfig) -> ImageSet:
    """The images without damaged files; LabError names the first unless the config skips them.

    Each file is decoded once for this, so that no damaged one stops a run later. The frames of
    videos are kept in memory."""
    if not (isinstance(part.items, list) and all(isinstance(item, Path) for item in part.items)):
        return part

    def good(file: Path) -> Path | np.ndarray | None:
        try:
            if config.frames:
                return read_clip(file, config.frames, config.channels or 3, config.size)
            reading.read_image(file, config.channels or 3, config.size, config.background)
        except LabError as error:
            if config.skip_damaged:
                return None
            raise LabError(f"{error}, or set config.data.skip_damaged = True") from error
        return file

    with ThreadPoolExecutor() as pool:
        items = list(pool.map(good, part.items))
    kept = [i for i, item in enumerate(items) if item is not None]
    texts = part.texts and [part.texts[i] for i in kept]
    return ImageSet([items[i] for i in kept], part.labels[kept], part.content, texts)


def _split(found: FoundImages, config: ImageConfig) -> dict[str, np.ndarray]:
    """The image numbers of each split. A split that the set lacks is cut from its training images,
    but no test split from a folder that has validation images."""
    numbers = {split: np.arange(len(part.items)) for split, part in found.parts.items()}
    wanted = {"validation": config.validation_share, "test": config.test_share}
    missing = [split for split in wanted if split not in numbers]
    if config.source == "folders" and "validation" in numbers:
        wanted["test"] = 0.0
    numbers |= {split: np.zeros(0, np.int64) for split in missing}
    if any(wanted[split] for split in missing):
        labels = np.asarray(found.parts["train"].labels)
        cut = _shares(labels, [wanted[split] for split in missing], config.split_seed, 1)
        numbers |= dict(zip(missing, cut, strict=True))
        numbers["train"] = np.setdiff1d(numbers["train"], np.concatenate(cut))
    if not len(numbers["train"]):
        raise LabError(
            f"config.data.validation_share = {config.validation_share} and test_share = "
            f"{config.test_share} leave no image to train on"
        )
    return numbers


def _shares(labels, shares: list[float], seed: int, left: int = 0) -> list[np.ndarray]:
    """Disjoint index arrays with the same share of every class, leaving at least `left` of it."""
    taken: list[list[np.ndarray]] = [[] for _ in shares]
    for label in np.unique(labels):
        order = np.random.default_rng((seed, label)).permutation(np.flatnonzero(labels == label))
        count, start = len(order), 0
        for places, share in zip(taken, shares, strict=True):
            end = start + (max(1, round(share * count)) if share else 0)
            end = max(start, min(end, count - left))
            places.append(order[start:end])
            start = end
    mix = np.random.default_rng(seed)  # so that the first of them are a fair sample
    return [mix.permutation(np.concatenate(places)) for places in taken]
