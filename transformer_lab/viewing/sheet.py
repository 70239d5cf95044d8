"""A contact sheet: images in a grid, each above its caption, under a heading."""

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

CELL, LINE = 96, 16  # pixels: the side of an image, and the height of a line of text


def font_of(size: int) -> ImageFont.FreeTypeFont:
    """The font DejaVu Sans, which matplotlib brings: it has letters of most European scripts."""
    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", size)


def draw(
    heading: str, images: Sequence[UInt8[np.ndarray, "96 96 3"]], captions: Sequence[str]
) -> Image.Image:
    """The sheet, at least four cells wide. A text that is too long for its line is cut."""
    columns = max(math.ceil(math.sqrt(len(images))), 4)
    rows, high = math.ceil(len(images) / columns), CELL + LINE
    made = Image.new("RGB", (columns * CELL, 2 * LINE + rows * high), "white")
    pen, font = ImageDraw.Draw(made), font_of(10)

    def write(text: str, left: int, top: int, wide: int) -> None:
        while pen.textlength(text, font) > wide:
            text = text[: -2 - text.endswith("…")] + "…"
        pen.text((left, top), text, "black", font)

    write(heading, 4, LINE // 2, columns * CELL - 8)
    for i, (image, caption) in enumerate(zip(images, captions, strict=True)):
        left, top = i % columns * CELL, 2 * LINE + i // columns * high
        made.paste(Image.fromarray(image), (left, top))
        write(caption, left + 2, top + CELL + 1, CELL - 4)
    return made
