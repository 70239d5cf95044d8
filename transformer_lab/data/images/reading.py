"""Reads image files of all common formats as uint8 arrays of a given size and channels."""

import io
import warnings
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageColor, ImageOps

from transformer_lab.errors import LabError, check_file

# Formats that Pillow decodes by itself; for some others it would start programs.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
MAX_PIXELS = 90_000_000  # a small file may be decompressed to any size
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # an error here

Size = tuple[int, ...]  # (height, width); (): the size of the image


def read_image(
    source: str | Path | bytes,
    channels: int = 3,
    size: Size = (),
    background: str = "white",
) -> UInt8[np.ndarray, "h w {channels}"]:
    """An image file, or its bytes, as grey (1 channel) or RGB (3), turned upright by its EXIF data.

    Transparent parts show the background, a colour by name or #rrggbb; 16 bits become 8 by division
    by 257. With a size the image is scaled to cover it, then cropped to its middle. Of an animation
    the first picture is read. Raises: LabError that names a file that is not a whole image."""
    name = "the image" if isinstance(source, bytes) else str(source)
    data = (
        source if isinstance(source, bytes) else check_file(Path(source).expanduser()).read_bytes()
    )
    if not data:
        raise LabError(f"{name} is empty: it needs an image")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height <= MAX_PIXELS:
                if size:  # a JPEG may be decoded at a fraction of its size that still covers this
                    image.draft(None, (2 * max(size),) * 2)
                return _array(ImageOps.exif_transpose(image), channels, size, background)
        reason = f"{width} x {height} pixels are over the limit of {MAX_PIXELS:,}"
    except Exception as error:  # each decoder raises its own kind for damaged files
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        if isinstance(error, Image.UnidentifiedImageError):
            reason = f"none of {', '.join(FORMATS)}"
    raise LabError(f"{name} cannot be read as an image ({reason}): replace it or leave it out")


def from_array(
    array: UInt8[np.ndarray, "rows columns *c"], channels: int, size: Size = ()
) -> UInt8[np.ndarray, "h w {channels}"]:
    """The same for pixels that a data set holds as arrays: grey [h, w] or [h, w, 1], or RGB."""
    if array.dtype != np.uint8:  # a cast would make fractions black
        raise LabError(f"an image of the set has pixels of {array.dtype}: it needs bytes, uint8")
    if array.ndim == 2:
        array = array[..., None]
    if array.shape[2] == channels and size in ((), array.shape[:2]):
        return array
    image = Image.fromarray(array.squeeze(2) if array.shape[2] == 1 else array)
    return _array(image, channels, size, "white")


def check_colour(name: str) -> None:
    """Raises: LabError for a text that is neither a colour's name nor #rrggbb."""
    try:
        ImageColor.getrgb(name)
    except ValueError as error:
        raise LabError(
            f'config.data.background = "{name}" is no colour: use a name or #rrggbb'
        ) from error


def _array(image: Image.Image, channels: int, size: Size, background: str) -> np.ndarray:
    image = _eight_bits(image)
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        behind = Image.new("RGBA", image.size, ImageColor.getrgb(background)[:3] + (255,))
        image = Image.alpha_composite(behind, image)
    image = image.convert("RGB" if channels == 3 else "L")
    if size and image.size != (size[1], size[0]):
        image = ImageOps.fit(image, (size[1], size[0]), Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(image.height, image.width, channels)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scales 16-bit grey to 8 bits, as Pillow's own conversion would clip it."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError(f"pixels of kind {image.mode}, not of 8 or 16 bits")
    return Image.fromarray(np.rint(values / 257).astype(np.uint8))
