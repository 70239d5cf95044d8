"""Rows of unequal length in two flat arrays, as tokenized examples are kept in memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, SupportsIndex, runtime_checkable

import numpy as np
from jaxtyping import Int, Int32, Int64

from transformer_lab.errors import LabError


@runtime_checkable
class Rows(Protocol):
    """Examples of unequal length: `Ragged`, or what reads them from a file when needed."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: SupportsIndex) -> np.ndarray:
        """Row `index`, whose first axis is as long as the row."""

    def lengths(self) -> Int64[np.ndarray, "rows"]:
        """The length of each row."""

    def take(self, ids: Int[np.ndarray, "chosen"]) -> "Rows":
        """The rows `ids`, in that order."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Token ids of many examples; row i is `values[offsets[i] : offsets[i + 1]]`.

    Rows [5, 6] and [7] have the values 5, 6, 7 and the offsets 0, 2, 3. Unlike a list of lists, a
    million rows are two objects, and a batch is one gather. LabError if offsets are invalid."""

    values: Int32[np.ndarray, "tokens"]
    offsets: Int64[np.ndarray, "rows_and_one"]

    def __post_init__(self):
        for name, dtype in (("values", np.int32), ("offsets", np.int64)):
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype != dtype:
                raise LabError(
                    f"Ragged.{name} must be 1-D {np.dtype(dtype)}, got {array.ndim}-D {array.dtype}"
                )
        ends = self.offsets[[0, -1]].tolist() if len(self.offsets) else []
        if ends != [0, len(self.values)] or (np.diff(self.offsets) < 0).any():
            raise LabError(
                f"Ragged.offsets must rise from 0 to the number of values, {len(self.values)}"
            )

    @classmethod
    def from_lists(cls, lists: Iterable[Sequence[int]]) -> "Ragged":
        """Packs one sequence of token ids per row; rows may be empty, and there may be none."""
        lists = list(lists)
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(row) for row in lists], out=offsets[1:])
        values = np.fromiter(chain.from_iterable(lists), np.int32, count=int(offsets[-1]))
        return cls(values, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Int32[np.ndarray, "length"]:
        """Row `index` as a view; negative indices count from the end, as in a list."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        index %= len(self)
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[Int32[np.ndarray, "length"]]:
        """Iterates over the rows in order, each as a view."""
        return map(self.__getitem__, range(len(self)))

    def lengths(self) -> Int64[np.ndarray, "rows"]:
        """The number of tokens in each row."""
        return np.diff(self.offsets)

    def __add__(self, other: "Ragged") -> "Ragged":
        offsets = np.concatenate([self.offsets, other.offsets[1:] + len(self.values)])
        return Ragged(np.concatenate([self.values, other.values]), offsets)

    def take(self, ids: Int[np.ndarray, "chosen"]) -> "Ragged":
        """A copy of the rows `ids`, in that order."""
        lengths = self.lengths()[ids]
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        # Each value's index in the old array: its row's old start plus its index in the row.
        moved = np.repeat(self.offsets[:-1][ids] - offsets[:-1], lengths)
        return Ragged(self.values[moved + np.arange(len(moved))], offsets)


def lengths_of(fields: Mapping[str, Rows]) -> Int64[np.ndarray, "rows fields"]:
    """The lengths of every example, with one column for each field in the dictionary's order.

    Raises: LabError if the fields have different numbers of rows."""
    counts = {name: len(rows) for name, rows in fields.items()}
    if len(set(counts.values())) != 1:
        raise LabError(f"fields must hold equally many rows, at least one field; got {counts}")
    return np.stack([rows.lengths() for rows in fields.values()], axis=1)


def fill(
    fields: dict[str, Ragged], ids: Int[np.ndarray, "rows"], shape: Sequence[int], pad_id: int
) -> dict[str, np.ndarray]:
    """The rows `ids` of every field, padded on the right to `shape`.

    `shape` holds one length per field, in the dictionary's order. A field `name` gives `name`
    (int32 [rows, length]) and `name_mask` (bool, True on the tokens). The id -1 gives a row of
    padding. Raises: LabError for a row longer than its field's length, as nothing is cut."""
    batch = {}
    for (name, rows), length in zip(fields.items(), shape, strict=True):
        batch[name], batch[f"{name}_mask"] = _pad(rows, ids, length, pad_id, name)
    return batch


def _pad(rows: Ragged, ids: np.ndarray, length: int, pad_id: int, name: str):
    filler = ids < 0
    starts = np.where(filler, 0, rows.offsets[ids])
    lengths = np.where(filler, 0, rows.offsets[ids + 1] - rows.offsets[ids])
    if len(ids) and lengths.max() > length:
        row = int(ids[lengths.argmax()])
        raise LabError(
            f'"{name}" of example {row} has {lengths.max()} tokens and the batch holds {length}:'
            " plan the batches from these lengths, or lower max_length"
        )
    columns = np.arange(length)
    mask = columns < lengths[:, None]
    tokens = np.full(mask.shape, pad_id, np.int32)
    tokens[mask] = rows.values[(starts[:, None] + columns)[mask]]
    return tokens, mask
