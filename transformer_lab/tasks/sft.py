"""Supervised fine-tuning: the next token of answers, the prompts before them only read."""

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np

from transformer_lab.data import packing
from transformer_lab.data.batching import RowPlan
from transformer_lab.data.buckets import Shape
from transformer_lab.data.dialogues import InstructionsConfig
from transformer_lab.data.packing import Packed
from transformer_lab.ops.losses import Pair
from transformer_lab.tasks.answers import GIVEN, TAUGHT, Answering, AnswersConfig, sections
from transformer_lab.tasks.base import Batch, HostBatch, Params

SECTIONS = sections(AnswersConfig, InstructionsConfig)


class SupervisedFineTuning(Answering):
    """Predicts the tokens of answers, several dialogues packed into a row.

    A batch is that of packed language modelling, with a `mask` that is True at answers and their
    end tokens alone; a prefix model reads all that comes before the first answer as prefix. "a b"
    with the answer "c" and "b" with "a" in rows of 8, after the start token (2):

        tokens    [[2, 4, 5, 6, 2, 5, 4, 0]]
        targets   [[4, 5, 6, 1, 5, 4, 1, 0]]
        mask      [[0, 0, 1, 1, 0, 1, 1, 0]]
        segments  [[1, 1, 1, 1, 2, 2, 2, 0]]
    """

    def packed(self, split: str) -> tuple[Packed, Packed]:
        """A split's dialogues in rows, and in the same places what kind of token each is."""
        length = self.sections["batch"].length
        ids, kinds = self.framed(self.dialogues(split))
        kept = np.flatnonzero(ids.lengths() - 1 <= length)
        if split == "train":
            self.left_out = len(ids) - len(kept)
        return tuple(packing.pack_closed(some.take(kept), length) for some in (ids, kinds))

    @cached_property
    def train_set(self) -> tuple[Packed, Packed]:
        return self.packed("train")

    @cached_property
    def train_plan(self) -> RowPlan:
        return packing.packed_plan(self.train_set[0], self.sections["batch"].rows, self.seed)

    @property
    def load_train(self) -> Any:
        return partial(self.load, self.train_set)

    def load(self, rows: tuple[Packed, Packed], ids: np.ndarray, shape: Shape) -> HostBatch:
        """The packed rows `ids`, of which -1 is padding."""
        laid, kinds = rows
        batch = packing.load_packed(ids, shape, laid)
        batch["mask"] &= kinds.targets[ids] == TAUGHT
        if self.model.reads_prefix:
            batch["prefix"] = (batch["segments"] > 0) & (kinds.tokens[ids] == GIVEN)
        return batch

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        rows, count = self.packed(split), self.sections["batch"].rows
        numbers = np.arange(len(rows[0].tokens))
        padded = np.pad(numbers, (0, -len(numbers) % count), constant_values=-1)
        for ids in padded.reshape(-1, count):
            yield self.load(rows, ids, (self.sections["batch"].length,))

    def sums(
        self, params: Params, batch: Batch, dropout_key, training: bool = False
    ) -> dict[str, Pair]:
        """The cross-entropy of the answers' tokens, and how many of them are the likeliest."""
        return super().sums(params, batch, dropout_key, training=True)


build = SupervisedFineTuning
