"""Audio files as one channel of samples in -1..1 at the rate that a model takes.

libsndfile reads the files (WAV, FLAC, Ogg, MP3 and others, of any rate and sample width). Several
channels are averaged. Other rates are resampled by libsoxr's "HQ" filter, with linear phase and 20
bits of precision. Files are read block by block, so that their length does not matter."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
from jaxtyping import Float

from transformer_lab.errors import LabError, check_file

BLOCK = 1 << 16  # samples of a channel that are read at once


class AudioFile:
    """An audio file that is read from its beginning to its end, part by part.

    Raises: LabError for a file that is missing, damaged, empty, not audio, or not finite."""

    def __init__(self, path: str | Path, rate: int):
        self.path, self.rate = check_file(path), rate
        self._held, self._first, self._left = [np.zeros(0, np.float32)], 0, self._blocks()

    def take(self, start: int, count: int) -> Float[np.ndarray, "n"]:
        """The `count` samples from `start` on, or fewer at the end of the file.

        Samples before `start` are dropped: later calls may not ask for them."""
        held, end = sum(map(len, self._held)), start + count
        while self._first + held < end and (block := next(self._left, None)) is not None:
            self._held.append(block)
            held += len(block)
            if self._first + held <= start:  # all of it is skipped
                self._held, self._first, held = [], self._first + held, 0
        kept = np.concatenate([np.zeros(0, np.float32), *self._held])[start - self._first :]
        self._held, self._first = [kept], start
        return kept[:count]

    def _blocks(self) -> Iterator[Float[np.ndarray, "n"]]:
        """The resampled samples, block by block as the file is read; the last may be empty."""
        soundfile = _library("soundfile")
        try:
            with soundfile.SoundFile(self.path) as file:
                change, empty = None, True
                if file.samplerate != self.rate:
                    rates = file.samplerate, self.rate
                    change = _library("soxr").ResampleStream(*rates, 1, "float32", "HQ")
                for block in file.blocks(BLOCK, dtype="float32", always_2d=True):
                    mono, empty = block.mean(axis=1), False
                    if not np.isfinite(mono).all():
                        raise LabError(f"{self.path}: holds samples that are no numbers")
                    yield mono if change is None else change.resample_chunk(mono)
                if empty:
                    raise LabError(f"{self.path}: holds no sample of audio")
                if change is not None:
                    yield change.resample_chunk(np.zeros(0, np.float32), last=True)
        except (soundfile.SoundFileError, RuntimeError) as error:
            reason = str(error).removeprefix(f"Error opening {str(self.path)!r}: ")
            raise LabError(f"{self.path}: cannot be read as audio: {reason}") from error


def duration(path: str | Path) -> float:
    """The length of an audio file in seconds, as its header says. Raises: LabError as above."""
    soundfile = _library("soundfile")
    try:
        return soundfile.info(str(check_file(path))).duration
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise LabError(f"{path}: cannot be read as audio: {error}") from error


def write(path: Path, samples: Float[np.ndarray, "n"], rate: int) -> None:
    """Writes samples in -1..1 with 16 bits each, in the format that the path's ending names."""
    _library("soundfile").write(path, samples, rate, subtype="PCM_16")


def _library(name: str) -> ModuleType:
    """Imports a library. Raises: LabError that says how to install it if it is missing."""
    try:
        return __import__(name)
    except (ImportError, OSError):  # OSError: without libsndfile itself
        raise LabError(f"audio needs `pip install {name}`") from None
