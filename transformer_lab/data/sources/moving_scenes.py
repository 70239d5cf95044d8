"""Clips of parts of photographs that pan, turn or grow, with two of Tux Paint's stamps that move
over them: for models of frames, without classes. A clip can be made again from its number."""

from typing import Any

import numpy as np
from jaxtyping import UInt8

from transformer_lab.data.images.sources import FoundImages
from transformer_lab.data.sources import moving_stamps, stamps

# From a frame to the next: the most that the stamps move beside the scene and the scene itself, in
# pixels, turn in degrees, and grow as logarithms.
STAMPS = (3.0, 3.0, 4.0, 0.04)
SCENE = (2.0, 2.0, 1.0, 0.02)
ROOM = 2  # the scene's picture is so many times as wide as a frame


def images(config: Any) -> FoundImages:
    """Clips of `frames` frames in three splits, with stamps and photographs divided by hashes of
    their names."""
    return moving_stamps.images(config, Clips, ["moving"])


class Clips(moving_stamps.Clips):
    """`count` clips, each made when it is asked for."""

    def __getitem__(self, index: int) -> UInt8[np.ndarray, "f side side 3"]:
        rng, side = np.random.default_rng((*self.seed, index)), self.side
        scene = stamps.background(self.photographs, ROOM * side, rng).convert("RGBA")
        moves = _drawn(rng, SCENE)
        layers = [(scene, np.array([0, 0, rng.uniform(-10, 10), 0]), moves)]
        for _ in range(2):
            place = np.array([*rng.uniform(-0.4, 0.4, 2) * side, rng.uniform(-30, 30), 0.0])
            layers.append((self._stamp(rng), place, moves + _drawn(rng, STAMPS)))
        times = np.arange(self.frames) - (self.frames - 1) / 2
        unit = np.array([side, side, 1, 1])
        frames = []
        for time in times:
            frame = scene.crop((0, 0, side, side))
            for picture, place, change in layers:
                state = (place + time * change) / unit
                frame = moving_stamps.pasted(frame, picture, state, side)
            frames.append(np.asarray(frame.convert("RGB")))
        return np.stack(frames)


def _drawn(rng: np.random.Generator, most: tuple[float, ...]) -> np.ndarray:
    """A motion between nothing and the most in each direction; small ones are as likely as large
    ones."""
    return rng.uniform(-1, 1, 4) * rng.uniform() * most
