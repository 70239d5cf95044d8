"""A single HTML page that shows attention maps, without a server or the network."""

import base64
import io
import json
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from transformer_lab.viewing.capture import Map, Maps

HERE = Path(__file__).parent
FINE = 2**23  # up to so many weights take 16 bits, more take 8: a page stays below 100 MB


def page(maps: Maps, title: str) -> str:
    """The HTML text of a page with these maps.

    Weights are exact to 1/65,535 of the greatest in their row (1/255 if there are many). Tokens are
    stored as JSON without a "<", so that none of them can end the script.
    """
    fine = sum(found.weights.size for found in maps.values()) <= FINE
    kinds = [{"name": name, **_values(found, fine)} for name, found in maps.items()]
    data = json.dumps({"title": title, "maps": kinds}).replace("<", "\\u003c")
    html, script = ((HERE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "js"))
    before, after = html.replace("{{script}}", script).split("{{data}}")
    return before + data + after


def quantize(
    weights: Float[np.ndarray, "*n t s"], bits: int
) -> tuple[np.ndarray, Float[np.ndarray, "*n t"]]:
    """Weights as whole numbers 0 .. 2^bits - 1, of which the greatest stands for each row's largest
    weight, and those largest weights."""
    largest = weights.max(axis=-1).astype("<f4")
    top = 2**bits - 1
    shares = weights / np.maximum(largest, np.finfo(np.float32).tiny)[..., None]
    return np.rint(shares * top).astype(f"<u{bits // 8}"), largest


def _values(found: Map, fine: bool) -> dict:
    numbers, largest = quantize(found.weights, 16 if fine else 8)
    encode = lambda heads: [[_base64(head.tobytes()) for head in layer] for layer in heads]  # noqa: E731
    return {
        "rows": found.rows,
        "columns": found.columns,
        "bytes": numbers.itemsize,
        "weights": encode(numbers),
        "largest": encode(largest),
        "grid": found.grid,
        "seconds": found.seconds,
        "picture": None if found.picture is None else _data_uri(found.picture),
    }


def _data_uri(picture: UInt8[np.ndarray, "h w 3"]) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return f"data:image/png;base64,{_base64(file.getvalue())}"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
