"""What tasks are made of before there is data: shapes, sizes of tables, and stand-ins for files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from transformer_lab import text
from transformer_lab.errors import LabError
from transformer_lab.models.base import Pictures, Towers

Shapes = dict[str, jax.ShapeDtypeStruct]


def stand_in(model: Any, sections: dict[str, Any]) -> dict[str, bytes]:
    """Assets with which a task is built without its data: as many pieces, labels and pixels as
    the config says, and no content."""
    files, kinds = {}, [getattr(model, n) for n in ("classes", "labels") if hasattr(model, n)]
    if kinds:
        names = [str(i) for i in range(kinds[0] or 2)]
        files["labels.json"] = json.dumps(names).encode()
    if isinstance(model, Pictures):
        half = [0.5] * model.channels
        form = {"size": model.image_size, "channels": model.channels, "mean": half, "std": half}
        files["images.json"] = json.dumps(form).encode()
    if "tokenizer" in sections:
        texts = model.text if isinstance(model, Towers) else model
        config, size = sections["tokenizer"], texts.vocab_size
        if size:  # the table is the model's own: no more pieces than that
            config = replace(config, vocab_size=min(config.vocab_size, size - config.extra_ids))
        files |= text.StandIn.train(config).to_files()
    return files


def parts_of(values: np.ndarray, rows: int) -> Iterator[tuple[np.ndarray, int]]:
    """The values in parts of so many rows, zeros filling up the last, and how many are real."""
    for first in range(0, len(values), rows):
        part = values[first : first + rows]
        fill = [(0, rows - len(part)), *[(0, 0)] * (part.ndim - 1)]
        yield np.pad(part, fill), len(part)


def shapes_of(dims: Sequence[int], **dtypes: Any) -> Shapes:
    """An abstract array of one shape for each name."""
    return {name: jax.ShapeDtypeStruct(tuple(dims), dtype) for name, dtype in dtypes.items()}


def table_size(size: int | None, pieces: int, of: str = "the tokenizer") -> int:
    """Rows of an embedding: the model's own number, which must hold all pieces."""
    if size is not None and size < pieces:
        raise LabError(f"model.vocab_size = {size}, but {of} has {pieces} pieces: leave it unset")
    return size or pieces
