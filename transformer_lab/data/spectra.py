"""Spectrograms of many recordings in one file of the cache, computed once."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsIndex

import numpy as np
from jaxtyping import Float16, Float32, Int, Int64

from transformer_lab.data.audio import AudioFile, duration
from transformer_lab.data.fetch import cache_dir
from transformer_lab.errors import LabError

Compute = Callable[[Float32[np.ndarray, "b n"]], Float32[np.ndarray, "b f m"]]
ROWS, SECOND = 16, 100  # recordings that are computed at once; frames of 10 ms in a second
KEPT = 64  # after so many times ROWS the progress is stored


@dataclass(frozen=True, eq=False)
class Spectra:
    """Spectrograms of unequal length, in the manner of `data.ragged.Ragged`.

    Spectrogram i is `values[starts[i] : starts[i] + sizes[i]]`, float16, which is read from the
    file when it is needed."""

    values: Float16[np.ndarray, "frames bands"]
    starts: Int64[np.ndarray, "n"]
    sizes: Int64[np.ndarray, "n"]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: SupportsIndex) -> Float32[np.ndarray, "f m"]:
        return self.values[self.starts[i] : self.starts[i] + self.sizes[i]].astype(np.float32)

    def lengths(self) -> Int64[np.ndarray, "n"]:
        """The number of frames of 10 ms of each recording."""
        return self.sizes

    def take(self, ids: Int[np.ndarray, "chosen"]) -> "Spectra":
        """The spectrograms `ids`, in that order."""
        return Spectra(self.values, self.starts[ids], self.sizes[ids])


def spectra(paths: Sequence[str], bands: int, rate: int, compute: Compute) -> Spectra:
    """The spectrograms of files of audio, computed if the cache lacks these files' with so many
    bands. A recording has a frame for each 10 ms, the last perhaps not full.

    `compute` gets samples, `rate` a second, with zeros after each recording. What a process that
    was ended has computed is kept. Raises: LabError for a file that cannot be read, or a cache that
    cannot be written."""
    said = [bands, rate, [[path, *_stamp(path)] for path in paths]]
    name = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:24]
    folder = cache_dir() / f"spectra-{name}"
    try:
        if not folder.is_dir():
            part = folder.with_suffix(".part")
            part.mkdir(parents=True, exist_ok=True)
            _write(part, paths, bands, rate, compute)
            if not folder.is_dir():  # another process may have been faster
                part.rename(folder)
    except OSError as error:
        raise LabError(f"cannot write the cache {cache_dir()} ({error.strerror})") from error
    sizes = np.load(folder / "sizes.npy")
    return Spectra(np.load(folder / "values.npy", mmap_mode="r"), np.cumsum(sizes) - sizes, sizes)


def _stamp(path: str) -> tuple[int, int]:
    """A file's bytes and the time of its last change in nanoseconds: if they are others, the stored
    spectrogram is made again."""
    try:
        found = os.stat(path)
    except OSError:
        duration(path)  # says in a line what is wrong
        raise
    return found.st_size, found.st_mtime_ns


def _write(folder: Path, paths: Sequence[str], bands: int, rate: int, compute: Compute) -> None:
    hop = rate // SECOND
    samples = [max(round(duration(path) * rate), 1) for path in paths]
    sizes = np.array([-(-n // hop) for n in samples], np.int64)
    starts = np.cumsum(sizes) - sizes
    shape = (max(int(sizes.sum()), 1), bands)
    order = np.argsort(sizes, kind="stable")  # so that those computed at once are alike
    ready = folder / "ready"  # how many of them are
    begun = int(ready.read_text("utf-8")) if ready.is_file() else 0
    made = {"mode": "r+"} if begun else {"mode": "w+", "dtype": np.float16, "shape": shape}
    values = np.lib.format.open_memmap(folder / "values.npy", **made)
    for first in range(begun, len(order), ROWS):
        some = order[first : first + ROWS]
        frames = -(-int(sizes[some].max()) // SECOND) * SECOND  # whole seconds: few shapes
        # The zeros after a recording reach as far as its last frame can see.
        sound = np.zeros((ROWS, (frames + SECOND) * hop), np.float32)
        for row, i in enumerate(some):
            part = AudioFile(paths[i], rate).take(0, int(sizes[i]) * hop)
            sound[row, : len(part)] = part
        found = compute(sound)
        for row, i in enumerate(some):
            values[starts[i] : starts[i] + sizes[i]] = found[row, : sizes[i]]
        done = first + len(some)
        if done % (KEPT * ROWS) == 0:
            values.flush()
            ready.write_text(str(done), "utf-8")
            print(f"spectra of {done:,} of {len(order):,} recordings", file=sys.stderr, flush=True)
    values.flush()
    np.save(folder / "sizes.npy", sizes)
