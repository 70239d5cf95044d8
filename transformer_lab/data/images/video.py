"""Reads the frames of video files, through the program that the library imageio-ffmpeg brings."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from transformer_lab.data.images.reading import Size, from_array
from transformer_lab.errors import LabError, check_file


def read_clip(
    path: str | Path, frames: int, channels: int = 3, size: Size = ()
) -> UInt8[np.ndarray, "{frames} h w {channels}"]:
    """So many frames of a video file, evenly spaced, each scaled and cropped as an image is.

    Frame i is the middle one of the i-th of `frames` equal parts of the video: of 12 frames, four
    are those with the numbers 1, 4, 7 and 10. Raises: LabError that names a file that is no video,
    is damaged, or has fewer frames."""
    path = name = str(Path(path).expanduser())
    with _reading(path) as library:
        count = library.count_frames_and_secs(name)[0]
    if count < frames:
        raise LabError(
            f"{name} has {count} frames, a clip needs {frames}: leave it out, or lower "
            "config.data.frames"
        )
    wanted = {(2 * i + 1) * count // (2 * frames) for i in range(frames)}
    every = enumerate(frames_of(path))
    kept = [from_array(frame, channels, size) for i, frame in every if i in wanted]
    if len(kept) < frames:
        raise LabError(f"{name} ends before its last frame: replace it or leave it out")
    return np.stack(kept)


def frames_of(path: str | Path) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
    """The frames of a video file in order. Raises: LabError as `read_clip` does."""
    with _reading(path) as library:
        # passthrough: each frame once, however long it is shown
        reader = library.read_frames(str(path), output_params=["-fps_mode", "passthrough"])
        shape = (*next(reader)["size"][::-1], 3)
        for frame in reader:
            yield np.frombuffer(frame, np.uint8).reshape(shape)


@contextmanager
def _reading(path: str | Path) -> Iterator[Any]:
    """The library, whose errors become one that names the file."""
    try:
        import imageio_ffmpeg
    except ImportError:
        raise LabError("videos need `pip install imageio-ffmpeg`") from None
    name = str(check_file(Path(path).expanduser()))
    try:
        yield imageio_ffmpeg
    except (RuntimeError, OSError, StopIteration, KeyError) as error:
        reason = " ".join(str(error).split())[-120:]
        raise LabError(f"{name} cannot be read as a video ({reason}): leave it out") from error
