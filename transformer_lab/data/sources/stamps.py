"""Scenes for detection: Tux Paint's stamps, cut out by their transparency, on photographs.

Stamps and photographs of a split occur in no other split. A scene follows from the seed, the split
and its number alone, so that any scene can be made again.
"""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from transformer_lab.data.fetch import cache_dir, folders
from transformer_lab.data.images.boxes import Boxed, FoundBoxes
from transformer_lab.data.splits import SPLITS, shuffled
from transformer_lab.errors import LabError

PACKAGES = "tuxpaint-stamps-default", "mate-backgrounds"
LICENCE = "GPL-2 (stamps), GPL-2+ (photographs)"
CLASSES = {  # the folders of each class, below stamps/
    "animal": ("animals",),
    "building": ("town/houses", "town/monuments"),
    "food": ("food",),
    "plant": ("plants",),
    "sign": ("town/roadsigns", "town/flags"),
    "vehicle": ("vehicles", "military/vehicles"),
}
SIDE = 96  # pixels of the longer side of a stored cut-out
HEIGHT = 360  # rows of a stored photograph
OPAQUE = 64  # the least opacity of an object's pixels, of 255
HIDDEN = 0.3  # the largest share of an object, or of an earlier one, that overlaps
LEAST, MOST = 0.2, 0.6  # the longer side of an object, as a share of the scene's
TURN, STRETCH, LIGHT = 15, 0.2, 0.3  # of training: degrees, and changes of sides and brightness


class Cutout(NamedTuple):
    """A stamp, cropped to its opaque part, as RGBA of at most SIDE pixels."""

    name: str  # the path below stamps/
    label: int
    picture: Image.Image


def boxed(config: Any) -> FoundBoxes:
    """Scenes of each split, with stamps and photographs divided by hashes of their names."""
    stamps, photographs = prepared(folders(config.path, *PACKAGES))
    owner = divided([name for name, _ in photographs], config)
    for label in range(len(CLASSES)):
        owner |= divided([stamp.name for stamp in stamps if stamp.label == label], config)
    parts, report = {}, {}
    for number, split in enumerate(SPLITS):
        mine = [stamp for stamp in stamps if owner[stamp.name] == split]
        pictures = [picture for name, picture in photographs if owner[name] == split]
        count = config.held_scenes if number else config.scenes
        parts[split] = Scenes(mine, pictures, config, number, count)
        report[f"{split}_stamps"] = len(mine)
    settings = config.split_seed, config.scenes, config.held_scenes, config.objects, config.longest
    content = f"{sorted(owner.items())} {settings}"
    return FoundBoxes(parts, list(CLASSES), LICENCE, content, report)


def divided(names: list[str], config: Any) -> dict[str, str]:
    """The split of each name; validation and test have at least one. Raises: LabError if nothing
    is left to train on."""
    shares = config.validation_share, config.test_share
    first, second = (max(1, round(share * len(names))) for share in shares)
    order = shuffled(names, config.split_seed)
    if first + second >= len(order):
        raise LabError(
            f"{len(order)} stamps of a class, or photographs, are too few for three splits: lower "
            "config.data.validation_share and test_share, or look at config.data.path"
        )
    held = {name: "validation" if i < first else "test" for i, name in enumerate(order)}
    return held | dict.fromkeys(order[first + second :], "train")


class Scenes(Sequence):
    """Square scenes of `longest` pixels: a part of a photograph with one to `objects` stamps."""

    def __init__(self, stamps: list[Cutout], photographs: list, config: Any, part: int, count: int):
        self.by_class = [[c for c in stamps if c.label == i] for i in range(len(CLASSES))]
        self.photographs, self.count = photographs, count
        self.varied = part == 0
        self.side, self.most, self.seed = config.longest, config.objects, (config.split_seed, part)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Boxed:
        rng, side = np.random.default_rng((*self.seed, index)), self.side
        scene = background(self.photographs, side, rng)
        boxes, labels = [], []
        for _ in range(rng.integers(1, self.most + 1)):
            label = int(rng.integers(len(CLASSES)))
            stamp = self.by_class[label][rng.integers(len(self.by_class[label]))].picture
            stamp = self._drawn(stamp, rng)
            size = stamp.size
            for _ in range(8):  # tries to find a place where no object hides another
                left, top = (int(rng.integers(side - n + 1)) for n in size)
                box = np.array([left, top, left + size[0], top + size[1]], np.float32)
                if all(_overlap(box, other) <= HIDDEN for other in boxes):
                    scene.paste(stamp, (left, top), stamp)
                    boxes.append(box)
                    labels.append(label)
                    break
        nothing = np.zeros(len(labels), bool)
        return Boxed(np.asarray(scene), np.stack(boxes), np.array(labels, np.int32), nothing,
                     f"scene {index}")  # fmt: skip

    def _drawn(self, stamp: Image.Image, rng: np.random.Generator) -> Image.Image:
        """The stamp in a random size and perhaps mirrored; in training also turned, stretched, and
        lighter or darker."""
        longer, ratio = rng.uniform(LEAST, MOST) * self.side, 1.0
        if self.varied:
            bands = stamp.split()
            light = 1 + rng.uniform(-LIGHT, LIGHT)
            lit = [band.point(lambda v: min(255, v * light)) for band in bands[:3]]
            stamp = Image.merge("RGBA", [*lit, bands[3]])
            turned = stamp.rotate(rng.uniform(-TURN, TURN), Image.Resampling.BILINEAR, expand=True)
            stamp = turned.crop(_opaque(turned).getbbox())
            ratio = 1 + rng.uniform(-STRETCH, STRETCH)
        sides = np.array(stamp.size) * [ratio, 1]
        size = [max(1, round(longer * n / max(sides))) for n in sides]
        stamp = stamp.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)
        mirrored = Image.Transpose.FLIP_LEFT_RIGHT
        return stamp.transpose(mirrored) if rng.random() < 0.5 else stamp


def background(photographs: list, side: int, rng: np.random.Generator) -> Image.Image:
    """A square of `side` pixels, of a random part of a random photograph, perhaps mirrored."""
    photograph = photographs[rng.integers(len(photographs))]
    part = int(rng.uniform(0.4, 1.0) * min(photograph.size))
    left, top = (int(rng.integers(n - part + 1)) for n in photograph.size)
    scene = photograph.crop((left, top, left + part, top + part))
    scene = scene.resize((side, side), Image.Resampling.BILINEAR)
    mirrored = Image.Transpose.FLIP_LEFT_RIGHT
    return scene.transpose(mirrored) if rng.random() < 0.5 else scene


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    """The common area of two boxes, as a share of the smaller one."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    areas = [(x[2:] - x[:2]).prod() for x in (a, b)]
    return float(sides.clip(0).prod() / min(areas))


def prepared(places: list[Path]) -> tuple[list[Cutout], list[tuple[str, Image.Image]]]:
    """The cut-outs and photographs, decoded and scaled once and then kept in the cache."""
    files = _files(places)
    facts = f"{CLASSES} {SIDE} {HEIGHT} {OPAQUE} " + " ".join(
        f"{name} {path.stat().st_size}" for name, path, _ in files
    )
    file = cache_dir() / f"stamps-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.npz"
    if not file.is_file():
        pixels = {}
        for name, path, label in files:
            with Image.open(path) as image:
                found = _photograph(image) if label < 0 else _cutout(image)
            if found is not None:
                pixels[f"{label}:{name}"] = np.asarray(found)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as out:
            np.savez(out, **pixels)
        os.replace(out.name, file)
    stamps, photographs = [], []
    with np.load(file) as stored:
        for key in stored.files:
            label, _, name = key.partition(":")
            picture = Image.fromarray(stored[key])
            if int(label) < 0:
                photographs.append((name, picture))
            else:
                stamps.append(Cutout(name, int(label), picture))
    return stamps, photographs


def _files(places: list[Path]) -> list[tuple[str, Path, int]]:
    """Name, path and class number of each stamp, and of each photograph with the number -1."""
    found = []
    for place in places:
        for root in place.rglob("tuxpaint/stamps"):
            for label, parts in enumerate(CLASSES.values()):
                for folder in parts:
                    paths = sorted((root / folder).rglob("*.png"))
                    found += [(str(path.relative_to(root)), path, label) for path in paths]
        found += [(path.name, path, -1) for path in sorted(place.rglob("mate/nature/*.jpg"))]
    if len({label for _, _, label in found}) <= len(CLASSES):
        raise LabError(
            f"{places[0]}: a folder with .../tuxpaint/stamps and .../mate/nature is needed"
        )
    return found


def _photograph(image: Image.Image) -> Image.Image:
    image.draft("RGB", (image.width // 2, HEIGHT))
    return image.convert("RGB").resize((round(image.width * HEIGHT / image.height), HEIGHT),
                                       Image.Resampling.LANCZOS)  # fmt: skip


def _cutout(image: Image.Image) -> Image.Image | None:
    """The opaque part, scaled to SIDE pixels; None for a picture without a transparent surround."""
    picture = image.convert("RGBA")
    opaque = _opaque(picture)
    area = np.asarray(opaque).mean() / 255
    if not 0 < area < 0.95:
        return None
    picture = picture.crop(opaque.getbbox())
    ratio = SIDE / max(picture.size)
    size = [max(1, round(n * ratio)) for n in picture.size]
    return picture.resize(size, Image.Resampling.LANCZOS)


def _opaque(picture: Image.Image) -> Image.Image:
    """White where an RGBA picture is opaque, else black."""
    return picture.getchannel("A").point(lambda a: 255 * (a >= OPAQUE))
