"""What tasks on preferences share: batches of pairs, and values that are stored with the run."""

import io
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np

from transformer_lab.data.batching import RowPlan
from transformer_lab.data.buckets import Shape
from transformer_lab.data.dialogues import Turns
from transformer_lab.data.ragged import Ragged, fill
from transformer_lab.tasks.answers import GIVEN, TAUGHT, Answering
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores
from transformer_lab.tasks.building import Shapes, shapes_of

SIDES = ("chosen", "rejected")


class Pairs(Answering):
    """A language model of pairs; a pair of which one side is longer than a row is left out.

    A batch holds `tokens`, `targets` (int32 [rows, 2, length], the better answer first), `mask`
    (True at the targets of the answer), `segments` (1, or 0 at padding), `margin` [rows], and for
    prefix models `prefix`.
    """

    COLUMNS: dict[str, Any] = {"margin": ()}  # float32 arrays beside, and their shapes by row

    def dialogues(self, split: str) -> Iterator[Turns]:
        for row in self.examples(split):
            yield from ((*row.prompt, *row.chosen), (*row.prompt, *row.rejected))

    def encode_pairs(self, split: str) -> tuple[dict[str, Ragged], dict[str, np.ndarray]]:
        """The ids of both sides and the kinds of these, and the columns, of pairs that fit."""
        ids, kinds = self.framed(self.dialogues(split))
        fields = {}
        for n, side in enumerate(SIDES):
            own = np.arange(n, len(ids), 2)
            fields |= {side: ids.take(own), f"{side}_kind": kinds.take(own)}
        longest = np.maximum(*(fields[side].lengths() for side in SIDES)) - 1
        kept = np.flatnonzero(longest <= self.sections["batch"].length)
        if split == "train":
            self.left_out = len(longest) - len(kept)
        margins = np.asarray([row.margin for row in self.examples(split)], np.float32)
        fields = {name: rows.take(kept) for name, rows in fields.items()}
        return fields, {"margin": margins[kept]}

    @cached_property
    def train_set(self) -> tuple[dict[str, Ragged], dict[str, np.ndarray]]:
        return self.encode_pairs("train")

    @cached_property
    def train_plan(self) -> RowPlan:
        filled = sum(self.train_set[0][side].lengths() - 1 for side in SIDES)
        batch = self.sections["batch"]
        return RowPlan("pairs", filled // 2, batch.length, batch.rows, self.seed, None)

    @property
    def load_train(self) -> Any:
        return partial(self.load, *self.train_set)

    def load(
        self,
        fields: dict[str, Ragged],
        columns: dict[str, np.ndarray],
        ids: np.ndarray,
        shape: Shape,
    ) -> HostBatch:
        """The pairs `ids`, of which -1 is padding."""
        found = fill(fields, ids, [shape[0] + 1] * len(fields), 0)
        both = lambda end: np.stack([found[side + end] for side in SIDES], axis=1)  # noqa: E731
        tokens, real, kinds = both(""), both("_mask"), both("_kind")
        batch = {
            "tokens": np.where(real[..., 1:], tokens[..., :-1], 0),
            "targets": tokens[..., 1:],
            "mask": kinds[..., 1:] == TAUGHT,
            "segments": real[..., 1:].astype(np.int32),
        }
        if self.model.reads_prefix:
            batch["prefix"] = real[..., 1:] & (kinds[..., :-1] == GIVEN)
        for name, values in columns.items():
            batch[name] = np.where(ids.reshape(-1, *[1] * (values.ndim - 1)) < 0, 0, values[ids])
        return batch

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        return (batch for _, batch in self.in_order(split))

    def in_order(self, split: str) -> Iterator[tuple[np.ndarray, HostBatch]]:
        """Batches with each pair once, and the number of the pair in each row (-1: padding)."""
        encoded, rows = self.encode_pairs(split), self.sections["batch"].rows
        count = len(encoded[1]["margin"])
        padded = np.pad(np.arange(count), (0, -count % rows), constant_values=-1)
        for ids in padded.reshape(-1, rows):
            yield ids, self.load(*encoded, ids, (self.sections["batch"].length,))

    def abstract_batch(self) -> Shapes:
        rows, length = self.sections["batch"].rows, self.sections["batch"].length
        names = {"tokens": np.int32, "targets": np.int32, "mask": bool, "segments": np.int32}
        names |= {"prefix": bool} if self.model.reads_prefix else {}
        columns = {}
        for name, shape in self.COLUMNS.items():
            columns |= shapes_of((rows, *shape), **{name: np.float32})
        return shapes_of((rows, 2, length), **names) | columns

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        real = batch["segments"] > 0
        return {"examples": int(real[:, 0, 0].sum()), "tokens": int(real.sum())}

    def flat(self, batch: Batch) -> Batch:
        """The batch with the sides as rows of their own: [2 rows, length]."""
        names = ("tokens", "targets", "mask", "segments", "prefix")
        return {n: batch[n].reshape(-1, batch[n].shape[-1]) for n in names if n in batch}

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        return Scores()


def to_file(arrays: dict[str, np.ndarray]) -> bytes:
    """Arrays by name as the content of an .npz file, the same for the same arrays."""
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def from_file(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of `to_file`."""
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        return dict(found)
