"""Tasks on examples of unequal length: the shapes, the order and the padding of their batches."""

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np

from transformer_lab.data.batching import BatchPlan, check_rows, choose_buckets, fits
from transformer_lab.data.buckets import Shape, rows_per_batch
from transformer_lab.data.pipeline import Batches
from transformer_lab.data.ragged import Ragged, Rows, fill, lengths_of
from transformer_lab.data.shard_plans import ShardPlan
from transformer_lab.data.shard_rows import Needed, load_records
from transformer_lab.tasks.base import HostBatch, Task
from transformer_lab.tasks.building import Shapes, shapes_of
from transformer_lab.terminal import counted

Fields = dict[str, Rows]
Columns = dict[str, np.ndarray | Ragged]  # a value for each example, or (Ragged) each of its tokens


class Bucketed(Task):
    """A batch holds each of `FIELDS` (int32 [rows, length]) with its mask, and `columns`.

    An example longer than `batch.max_length` or the model's own limit is left out.
    """

    FIELDS: tuple[str, ...] = ("tokens",)
    PER_ROW: dict[str, Any] = {}  # columns with a value for each example, and their dtypes
    PER_TOKEN: dict[str, Any] = {}  # columns with a value for each token of the first field

    def encode_split(self, split: str) -> tuple[Fields, Columns]:
        """The token ids of a split's examples, and the other columns of its batches. Tasks that
        build their batches in another way do not define it."""
        raise TypeError(f"{type(self).__name__} has no `encode_split`")

    def check(self, model_kind: str, model_config: Any) -> None:
        check_rows("rows_multiple", self.sections["batch"].rows_multiple, self.rows_multiple)

    def slots(self) -> tuple[int, int]:
        """The token positions of a batch, and the number that its row count is a multiple of."""
        return self.sections["batch"].tokens_per_batch, self.sections["batch"].rows_multiple

    def longest(self) -> int | tuple[int, ...]:
        """The most tokens of a training example: one limit for all fields, or one for each."""
        return self.sections["batch"].max_length

    def possible(self, fields: Fields) -> Any:
        """A mask of the examples that have a loss at all; the others are left out as well."""
        return True

    def fitting(self, split: str) -> tuple[Fields, Columns, np.ndarray]:
        """The split without examples that are too long, and a mask of those kept."""
        fields, columns = self.encode_split(split)
        limit = self.model_config.max_length
        if split == "train":
            limit = np.minimum(limit, np.atleast_1d(self.longest()))
        fit = fits(lengths_of(fields), limit) & self.possible(fields)
        if not fit.all():
            kept = np.flatnonzero(fit)
            fields = {name: rows.take(kept) for name, rows in fields.items()}
            columns = {
                name: values.take(kept) if isinstance(values, Ragged) else values[kept]
                for name, values in columns.items()
            }
        return fields, columns, fit

    @cached_property
    def train_set(self) -> tuple[Fields, Columns, np.ndarray]:
        """The encoded training examples that are not too long; see `fitting`."""
        return self.fitting("train")

    @cached_property
    def train_shapes(self) -> list[Shape]:
        """The batch shapes, chosen so that the training examples need the least padding."""
        lengths = lengths_of(self.train_set[0])
        return choose_buckets(lengths, self.sections["batch"].buckets, *self.slots())

    @cached_property
    def train_plan(self) -> BatchPlan | ShardPlan:
        if self.shards is not None:
            return self.shard_plan()
        lengths = lengths_of(self.train_set[0])
        return BatchPlan(lengths, self.train_shapes, *self.slots(), self.seed)

    @property
    def dropped(self) -> int:
        """The number of training examples that are left out because they are too long."""
        return self.train_plan.dropped if self.shards else int((~self.train_set[2]).sum())

    def shard_plan(self, rates: np.ndarray | None = None) -> ShardPlan:
        """The order of batches read from prepared shards; `rates` weight the parts of a mixture."""
        longest = np.minimum(self.model_config.max_length, np.atleast_1d(self.longest()))
        buckets = self.sections["batch"].buckets
        return ShardPlan(self.shards, longest, buckets, *self.slots(), self.seed, rates)

    def abstract_batch(self) -> Shapes:
        tokens, multiple = self.slots()
        room = tokens // multiple // len(self.FIELDS)
        longest = np.minimum(self.longest(), min(self.model_config.max_length, room))
        shape = np.broadcast_to(longest, len(self.FIELDS)).tolist()
        rows, batch = rows_per_batch(shape, tokens, multiple), {}
        for name, length in zip(self.FIELDS, shape, strict=True):
            batch |= shapes_of((rows, length), **{name: np.int32, f"{name}_mask": bool})
        per_token = shapes_of((rows, shape[0]), **self.PER_TOKEN)
        return {**batch, **shapes_of((rows,), **self.PER_ROW), **per_token}

    def train_batches(self) -> Batches:
        if self.shards is not None:
            return Batches(self.train_plan, self.load_shards, by_rows=True)
        fields, columns, _ = self.train_set
        return Batches(self.train_plan, partial(self.load, fields, columns))

    def load_shards(self, ids: np.ndarray, shape: Shape, needed: Needed = None) -> HostBatch:
        """Reads the records `ids` and pads them to a batch of the given shape."""
        pad_id = self.tokenizer.pad_id
        return load_records(ids, shape, needed, shards=self.shards, pad_id=pad_id)

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        fields, columns, _ = self.fitting(split)
        return (batch for _, batch in self.in_order(fields, columns))

    def in_order(self, fields: Fields, columns: Columns) -> Iterator[tuple[np.ndarray, HostBatch]]:
        """Batches with each example once, and the example in each row (-1: padding).

        The training shapes are tried first, as they are compiled; longer examples add one."""
        lengths = lengths_of(fields)
        if not len(lengths):
            return
        shapes = [shape for shape in self.eval_shapes() if len(shape) == lengths.shape[1]]
        shapes = shapes or list(self.train_plan.shapes)
        largest = np.maximum(lengths.max(axis=0), shapes[-1])
        if (largest > shapes[-1]).any():
            shapes.append(tuple(int(x) for x in largest))
        slots, multiple = self.slots()
        slots = max(slots, sum(shapes[-1]) * multiple)
        plan = BatchPlan(lengths, shapes, slots, multiple, shuffle=False)
        for bucket, ids in plan:
            yield ids, self.load(fields, columns, ids, plan.shapes[bucket])

    def eval_shapes(self) -> list[Shape]:
        """The batch shapes, smallest first, that evaluation uses where the examples fit."""
        return self.train_plan.shapes

    def load(self, fields: Fields, columns: Columns, ids: np.ndarray, shape) -> HostBatch:
        """A batch with each field padded, its mask, and each column; padding rows (id -1) are 0."""
        batch = fill(fields, ids, shape, self.tokenizer.pad_id)
        for name, values in columns.items():
            if isinstance(values, Ragged):
                batch[name] = fill({name: values}, ids, shape[:1], 0)[name]
                continue
            row = (ids >= 0).reshape(-1, *[1] * (values.ndim - 1))
            batch[name] = np.where(row, values[ids], 0).astype(values.dtype)
        return batch

    def describe_batches(self) -> list[str]:
        """Lines of the report on the batches: their number, padding and shapes."""
        plan = self.train_plan
        return [
            f"batches: {len(plan):,} an epoch, {100 * plan.padding_share():.1f} % padding, "
            f"{counted(len(plan.shapes), 'shape')} (one compilation each):",
            *(f"  {line}" for line in plan.describe()),
        ]
