"""Reads the frames of video files, through the program that the library imageio-ffmpeg brings."""

from pathlib import Path

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
    try:
        import imageio_ffmpeg
    except ImportError:
        raise LabError("videos need `pip install imageio-ffmpeg`") from None
    name = str(check_file(Path(path).expanduser()))
    try:
        count = imageio_ffmpeg.count_frames_and_secs(name)[0]
        if count < frames:
            raise LabError(
                f"{name} has {count} frames, a clip needs {frames}: leave it out, or lower "
                "config.data.frames"
            )
        wanted = {(2 * i + 1) * count // (2 * frames) for i in range(frames)}
        # passthrough: each frame once, however long it is shown
        reader = imageio_ffmpeg.read_frames(name, output_params=["-fps_mode", "passthrough"])
        shape = (*next(reader)["size"][::-1], 3)
        some = (np.frombuffer(frame, np.uint8) for i, frame in enumerate(reader) if i in wanted)
        kept = [from_array(frame.reshape(shape), channels, size) for frame in some]
    except (RuntimeError, OSError, StopIteration, KeyError) as error:
        reason = " ".join(str(error).split())[-120:]
        raise LabError(f"{name} cannot be read as a video ({reason}): leave it out") from error
    if len(kept) < frames:
        raise LabError(f"{name} ends before its last frame: replace it or leave it out")
    return np.stack(kept)
