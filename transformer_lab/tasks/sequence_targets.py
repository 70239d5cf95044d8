"""Language models scored at some positions of a sequence: recall, copying, ListOps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab.data import sequences
from transformer_lab.data.batching import RowCount, RowPlan
from transformer_lab.errors import LabError
from transformer_lab.models.base import LanguageModel
from transformer_lab.ops.losses import Pair, cross_entropy, masked_sum
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores, Task
from transformer_lab.tasks.building import Shapes, parts_of, shapes_of, table_size


@dataclass(frozen=True)
class SequenceTargetsConfig:
    """Settings of tasks with targets at some positions, the config section `task`."""

    other_lengths: tuple[int, ...] = ()  # the finished model is scored with these too

    def __post_init__(self):
        if min(self.other_lengths, default=1) < 1:
            raise LabError(f"task.other_lengths = {self.other_lengths} must be at least 1 each")


SECTIONS = {
    "task": SequenceTargetsConfig,
    "data": sequences.SequencesConfig,
    "batch": RowCount,
}


class SequenceTargets(Task):
    """Predicts the targets at some positions of a sequence; no other position counts.

    A batch holds `tokens`, `targets` (int32 [rows, length]: what the model has to predict at a
    position, 0 where it is not asked) and `mask` (True where it is). Associative recall with one
    key and its value, the first two tokens of each row, in a vocabulary of 8:

        tokens   [[3, 5, 7, 1, 3, 0], [1, 5, 1, 0, 7, 3]]
        targets  [[0, 0, 0, 0, 5, 0], [0, 0, 5, 0, 0, 0]]
        mask     [[0, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]]
    """

    NEEDS, COUNTED = LanguageModel, "sequences"
    load_data = sequences.load_sequences

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        self.vocabulary = sequences.vocabulary_of(self.sections["data"])
        lengths = self.sections["data"].length, *self.config.other_lengths
        if max(lengths) > model_config.max_length:
            raise LabError(
                f"data.length = {lengths[0]} and task.other_lengths = {lengths[1:]} must be within "
                f"model.max_length = {model_config.max_length}"
            )

    def fit(self, model_config: Any) -> Any:
        size = table_size(model_config.vocab_size, self.vocabulary, "the data")
        return replace(model_config, vocab_size=size)

    # Data.

    @cached_property
    def train_plan(self) -> RowPlan:
        rows, length = self.data.train.tokens.shape
        filled = np.full(rows, length)
        return RowPlan("sequences", filled, length, self.sections["batch"].rows, self.seed, None)

    def load_train(self, ids: np.ndarray, shape: tuple[int, ...]) -> HostBatch:
        """A batch of the training sequences `ids`; rows with the id -1 have no target."""
        some = self.data.train.take(ids)
        return _batch(some.tokens, some.targets, some.mask & (ids >= 0)[:, None])

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        return self._batches(self.examples(split))

    def _batches(self, some: sequences.Sequences) -> Iterator[HostBatch]:
        """Each sequence once; the longer the sequences, the fewer are in a batch."""
        length, rows = some.tokens.shape[1], self.sections["batch"].rows
        share = max(1, -(-length // self.sections["data"].length))
        rows = max(rows // share // self.rows_multiple, 1) * self.rows_multiple
        arrays = some.tokens, some.targets, some.mask
        for parts in zip(*(parts_of(array, rows) for array in arrays), strict=True):
            yield _batch(*(part for part, _ in parts))

    def abstract_batch(self) -> Shapes:
        shape = self.sections["batch"].rows, self.sections["data"].length
        return shapes_of(shape, tokens=np.int32, targets=np.int32, mask=bool)

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        rows = int(batch["mask"].any(axis=1).sum())
        return {"examples": rows, "tokens": rows * batch["mask"].shape[1]}

    # What the trainer compiles.

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """Cross-entropy and accuracy of the targets, and `exact`, the share of rows all right."""
        targets, mask = batch["targets"], batch["mask"]
        scores = self.model.apply({"params": params}, batch["tokens"], dropout_key, labels=targets)
        right = scores.best == targets
        whole = (right | ~mask).all(axis=1).astype(jnp.float32)
        return {
            "loss": masked_sum(cross_entropy(scores, targets), mask),
            "accuracy": masked_sum(right.astype(jnp.float32), mask),
            "exact": masked_sum(whole, mask.any(axis=1)),
        }

    # Scores and the report.

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """For a trained model: the accuracy at other lengths, and that of always guessing the
        commonest target of the training set."""
        if not final:
            return Scores()
        train, held = self.data.train, self.examples(split)
        commonest = np.bincount(train.targets[train.mask]).argmax()
        values = {"majority_baseline": float((held.targets[held.mask] == commonest).mean())}
        accuracy = jax.jit(lambda params, batch: self.metrics(params, batch)["accuracy"])
        config = self.sections["data"]
        for length in self.config.other_lengths:
            some = sequences.make(config, split, length, config.other_size)
            sums = [accuracy(params, place(batch)) for batch in self._batches(some)]
            right, count = np.asarray(sums, np.float64).sum(axis=0)
            values[f"accuracy_{length}"] = float(right / count)
        return Scores(values)

    def details(self) -> list[str]:
        length, asked = self.sections["data"].length, self.data.train.mask.sum()
        each = asked / max(len(self.data.train), 1)
        return [f"{length} tokens a sequence out of {self.vocabulary:,}, {each:.1f} asked for"]


def _batch(tokens: np.ndarray, targets: np.ndarray, mask: np.ndarray) -> HostBatch:
    return {
        "tokens": tokens.astype(np.int32),
        "targets": targets.astype(np.int32),
        "mask": np.asarray(mask, bool),
    }


build = SequenceTargets
