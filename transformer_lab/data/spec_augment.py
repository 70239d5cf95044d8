"""SpecAugment (Park 2019): stripes of a spectrogram are hidden, in frequency and in time."""

from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from jaxtyping import Float

from transformer_lab.errors import at_least, within


@dataclass(frozen=True)
class SpecAugmentConfig:
    """How many stripes are hidden and how wide they may be; 0 stripes hide nothing.

    The defaults are Park's for LibriSpeech with 80 bands, with time masks that grow with the
    recording (Gulati 2020, section 3.1)."""

    frequency_masks: int = 2  # stripes of bands that are hidden
    frequency_width: int = 27  # F, the most bands of a stripe
    time_masks: int = 10  # stripes of frames that are hidden
    time_share: float = 0.05  # of a recording's frames, the most of a stripe

    def __post_init__(self):
        at_least(self, "augment", 0, "frequency_masks", "frequency_width", "time_masks")
        within("augment.time_share", self.time_share, 0, 1)


def hide_stripes(
    spectrum: Float[np.ndarray, "f m"], draw: SupportsIndex, config: SpecAugmentConfig
) -> Float[np.ndarray, "f m"]:
    """A copy with stripes of zeros, which follow from the random seed `draw` alone.

    Each stripe's width is drawn from 0 to its limit, then its first band or frame."""
    found, rng = spectrum.copy(), np.random.default_rng(draw)
    frames, bands = spectrum.shape
    widest = min(config.frequency_width, bands), int(config.time_share * frames)
    for _ in range(config.frequency_masks):
        width = rng.integers(widest[0] + 1)
        first = rng.integers(bands - width + 1)
        found[:, first : first + width] = 0
    for _ in range(config.time_masks):
        width = rng.integers(widest[1] + 1)
        first = rng.integers(frames - width + 1)
        found[first : first + width] = 0
    return found
