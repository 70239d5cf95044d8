"""Draws boxes with their classes and scores on an image."""

import io
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageColor, ImageDraw

from transformer_lab.viewing.sheet import font_of

COLOURS = ("red", "deepskyblue", "lime", "orange", "magenta", "yellow", "cyan", "white")
LEAST = 400  # smaller images are enlarged to that many pixels, so that words can be read


def draw(image: UInt8[np.ndarray, "h w 3"], rows: list[dict[str, Any]]) -> bytes:
    """A PNG of the image with each row's `box` (left, top, right, bottom in pixels of the image),
    `label` and `score`; each class has its colour."""
    times = max(1, -(-LEAST // max(image.shape[:2])))
    size = image.shape[1] * times, image.shape[0] * times
    picture = Image.fromarray(image).resize(size, Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(picture)
    font = font_of(max(12, max(size) // 50))
    names = sorted({row["label"] for row in rows})
    for row in sorted(rows, key=lambda row: row["score"]):  # the surest lies on top
        left, top, right, bottom = (side * times for side in row["box"])
        colour = COLOURS[names.index(row["label"]) % len(COLOURS)]
        pen.rectangle((left, top, right, bottom), outline=colour, width=max(2, max(size) // 300))
        text = f"{row['label']} {row['score']:.2f}"
        around = pen.textbbox((left, top), text, font=font)
        pen.rectangle(around, fill=colour)
        dark = sum(ImageColor.getrgb(colour)) < 300
        pen.text((left, top), text, fill="white" if dark else "black", font=font)
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return file.getvalue()
