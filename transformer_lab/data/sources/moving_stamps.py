"""Clips of one of Tux Paint's stamps that moves over a photograph, with its motion as the class.

Stamps and photographs of a split occur in no other split. A clip follows from the seed, the split
and its number alone, so that any clip can be made again.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from transformer_lab.data.fetch import folders
from transformer_lab.data.images.sources import FoundImages, ImageSet
from transformer_lab.data.sources import stamps
from transformer_lab.data.splits import SPLITS
from transformer_lab.errors import LabError

SIDE = 32  # pixels of a square frame, unless config.data.size says otherwise
# What changes from the first frame to the last: columns to the right and rows down, as shares of
# the frame's side, turns clockwise in degrees, and the logarithm of the size. Each is multiplied by
# a random number from LEAST to 1.
MOTIONS = {
    "left": (-0.6, 0.0, 0.0, 0.0),
    "right": (0.6, 0.0, 0.0, 0.0),
    "up": (0.0, -0.6, 0.0, 0.0),
    "down": (0.0, 0.6, 0.0, 0.0),
    "clockwise": (0.0, 0.0, 120.0, 0.0),
    "anticlockwise": (0.0, 0.0, -120.0, 0.0),
    "growing": (0.0, 0.0, 0.0, 1.0),
    "shrinking": (0.0, 0.0, 0.0, -1.0),
}
LEAST = 0.5
# The stamp in the middle of the clip, whatever the motion: its longer side as a share of the
# frame's, and the most that its middle is from the frame's and that it is turned, in degrees.
SIZES, AWAY, TURNED = (0.3, 0.6), 0.2, 30.0


def images(config: Any, kind: Any = None, names: Sequence[str] = tuple(MOTIONS)) -> FoundImages:
    """Clips of `frames` frames in three splits, with stamps and photographs divided by hashes of
    their names. The classes are the eight motions, of which each has as many clips; another `kind`
    of clips, a class like `Clips`, has names of its own."""
    if not config.frames:
        raise LabError(f"config.data.frames = 0: {config.source} makes clips, give 8")
    cutouts, photographs = stamps.prepared(folders(config.path, *stamps.PACKAGES))
    owner = stamps.divided([name for name, _ in photographs], config)
    owner |= stamps.divided([one.name for one in cutouts], config)
    parts = {}
    for number, split in enumerate(SPLITS):
        mine = [one.picture for one in cutouts if owner[one.name] == split]
        behind = [picture for name, picture in photographs if owner[name] == split]
        count = config.held_clips if number else config.clips
        clips = (kind or Clips)(mine, behind, config, number, count)
        facts = names if kind else MOTIONS, count, config.frames, config.split_seed
        content = " ".join(map(str, (sorted(owner.items()), *facts)))
        parts[split] = ImageSet(clips, np.arange(count) % len(names), content)
    return FoundImages(parts, list(names), 3, stamps.LICENCE)


class Clips(Sequence):
    """`count` clips, each made when it is asked for; clip i has motion i modulo 8."""

    def __init__(self, cutouts: list, photographs: list, config: Any, part: int, count: int):
        self.cutouts, self.photographs, self.count = cutouts, photographs, count
        self.frames, self.side = config.frames, max(config.size, default=SIDE)
        self.seed = config.split_seed, part

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> UInt8[np.ndarray, "f side side 3"]:
        rng = np.random.default_rng((*self.seed, index))
        scene = stamps.background(self.photographs, self.side, rng)
        stamp = self._stamp(rng)
        change = np.array(list(MOTIONS.values())[index % len(MOTIONS)]) * rng.uniform(LEAST, 1)
        middle = np.array([*rng.uniform(-AWAY, AWAY, 2), rng.uniform(-TURNED, TURNED), 0.0])
        # A single frame is the first one.
        times = np.linspace(0, 1, self.frames) - 0.5
        states = (middle + time * change for time in times)
        return np.stack([np.asarray(pasted(scene, stamp, x, self.side)) for x in states])

    def _stamp(self, rng: np.random.Generator) -> Image.Image:
        """One of the cut-outs, its longer side a share of the frame between those of `SIZES`."""
        stamp = self.cutouts[rng.integers(len(self.cutouts))]
        ratio = rng.uniform(*SIZES) * self.side / max(stamp.size)
        size = [max(2, round(n * ratio)) for n in stamp.size]
        return stamp.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)


def pasted(scene: Image.Image, stamp: Image.Image, state: np.ndarray, side: int) -> Image.Image:
    """The square scene with the stamp in a state: how far its middle is from the scene's in columns
    and rows, as shares of the side, its angle in degrees and the logarithm of its size."""
    column, row = (0.5 + state[:2]) * side
    x, y = (n / 2 for n in stamp.size)
    cos, sin = (f(np.deg2rad(state[2])) / np.exp(state[3]) for f in (np.cos, np.sin))
    # From a pixel of the scene to the stamp's: rows count downwards, so that a positive angle turns
    # clockwise.
    matrix = (cos, sin, x - cos * column - sin * row, -sin, cos, y + sin * column - cos * row)
    form = (side, side), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
    moved = stamp.transform(*form)
    scene = scene.copy()
    scene.paste(moved, (0, 0), moved)
    return scene
