"""Helpers of tasks that need no data: abstract shapes, table sizes, and stand-ins for files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from transformer_lab import text
from transformer_lab.errors import LabError
from transformer_lab.models.base import Clips, Pictures, Towers

Shapes = dict[str, jax.ShapeDtypeStruct]


def stand_in(model: Any, sections: dict[str, Any]) -> dict[str, bytes]:
    """Placeholder assets from which a task is built without its data: as many tokens, labels and
    pixels as the config states, without content."""
    files, kinds = {}, [getattr(model, n) for n in ("classes", "labels") if hasattr(model, n)]
    if kinds:
        names = [str(i) for i in range(kinds[0] or 2)]
        files["labels.json"] = json.dumps(names).encode()
    if isinstance(model, Pictures):
        half = [0.5] * model.channels
        form = {"size": model.image_size, "channels": model.channels, "mean": half, "std": half}
        form |= {"frames": model.frames} if isinstance(model, Clips) else {}
        files["images.json"] = json.dumps(form).encode()
    if "tokenizer" in sections:
        texts = model.text if isinstance(model, Towers) else model
        config, size = sections["tokenizer"], texts.vocab_size
        if size:  # the model's table limits the number of tokens
            config = replace(config, vocab_size=min(config.vocab_size, size - config.extra_ids))
        files |= text.StandIn.train(config).to_files()
    return files


def parts_of(values: np.ndarray, rows: int) -> Iterator[tuple[np.ndarray, int]]:
    """Parts of `rows` values, the last padded with zeros, each with its number of real values."""
    for first in range(0, len(values), rows):
        part = values[first : first + rows]
        fill = [(0, rows - len(part)), *[(0, 0)] * (part.ndim - 1)]
        yield np.pad(part, fill), len(part)


def shapes_of(dims: Sequence[int], **dtypes: Any) -> Shapes:
    """One abstract array of the given dimensions for each name and dtype."""
    return {name: jax.ShapeDtypeStruct(tuple(dims), dtype) for name, dtype in dtypes.items()}


def table_size(size: int | None, pieces: int, of: str = "the tokenizer") -> int:
    """The rows of an embedding: the model's setting, which may not be too small, else `pieces`."""
    if size is not None and size < pieces:
        raise LabError(f"model.vocab_size = {size}, but {of} has {pieces} pieces: leave it unset")
    return size or pieces
