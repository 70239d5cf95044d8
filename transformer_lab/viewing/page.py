"""A single HTML page that shows attention maps, without a server or the network."""

import base64
import io
import json
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from transformer_lab.viewing.capture import Map, Maps

HERE = Path(__file__).parent
FINE = 2**23  # up to so many weights take 16 bits, more take 8
MOST = 3_500_000  # compressed bytes of all weights: with them a page stays below 5 MB
LEVELS = (255, 63, 31, 15, 7, 3)  # of 8 bits, tried in turn until the weights fit
THUMB = 32  # sides of a thumbnail, in pixels


def page(maps: Maps, title: str) -> str:
    """The HTML text of a page with these maps.

    Weights are exact to half a level of the greatest in their row; there are 65,535 levels, or 255
    for more than 8 million weights, or fewer where a page would exceed 5 MB. Tokens are stored as
    JSON without a "<", so that none of them can end the script.
    """
    fine = sum(found.weights.size for found in maps.values()) <= FINE
    for levels in (2**16 - 1, *LEVELS) if fine else LEVELS:
        kinds = [{"name": name, **_values(found, levels)} for name, found in maps.items()]
        if sum(len(head) for kind in kinds for layer in kind["weights"] for head in layer) < (
            MOST * 4 / 3
        ):
            break
    data = json.dumps({"title": title, "maps": kinds}).replace("<", "\\u003c")
    names = "page.html", "page_data.js", "page_lines.js", "page.js"
    html, *scripts = ((HERE / name).read_text(encoding="utf-8") for name in names)
    before, after = html.replace("{{script}}", "".join(scripts)).split("{{data}}")
    return before + data + after


def quantize(
    weights: Float[np.ndarray, "*n t s"], levels: int
) -> tuple[np.ndarray, Float[np.ndarray, "*n t"]]:
    """Weights as whole numbers 0 .. `levels`, of which the greatest stands for each row's largest
    weight, and those largest weights."""
    largest = weights.max(axis=-1).astype("<f4")
    shares = weights / np.maximum(largest, np.finfo(np.float32).tiny)[..., None]
    return np.rint(shares * levels).astype("<u2" if levels > 255 else "<u1"), largest


def thumbnails(weights: Float[np.ndarray, "layers heads t s"]) -> np.ndarray:
    """A picture of at most 32 x 32 of each head: the largest weight of each part, as 0 .. 255."""
    small = weights
    for axis in (2, 3):
        size = small.shape[axis]
        starts = np.unique(np.arange(min(THUMB, size)) * size // min(THUMB, size))
        small = np.maximum.reduceat(small, starts, axis=axis)
    peak = np.maximum(small.max(axis=(2, 3), keepdims=True), np.finfo(np.float32).tiny)
    return np.rint(255 * small / peak).astype(np.uint8)


def _values(found: Map, levels: int) -> dict:
    numbers, largest = quantize(found.weights, levels)
    encode = lambda heads: [[_packed(head) for head in layer] for layer in heads]  # noqa: E731
    small = thumbnails(found.weights)
    return {
        "rows": found.rows,
        "columns": found.columns,
        "bytes": numbers.itemsize,
        "levels": levels,
        "weights": encode(numbers),
        "largest": encode(largest),
        "thumbnails": _packed(small),
        "small": small.shape[2:],
        "grid": found.grid,
        "seconds": found.seconds,
        "picture": None if found.picture is None else _data_uri(found.picture),
    }


def _data_uri(picture: UInt8[np.ndarray, "h w 3"]) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return f"data:image/png;base64,{_base64(file.getvalue())}"


def _packed(array: np.ndarray) -> str:
    return _base64(zlib.compress(array.tobytes(), 6))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
