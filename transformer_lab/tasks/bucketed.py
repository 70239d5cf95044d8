"""What tasks on examples of unequal length share: shapes, order and padding of their batches."""

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from transformer_lab.data.batching import BatchPlan, check_rows, choose_buckets, fits
from transformer_lab.data.buckets import Shape, rows_per_batch
from transformer_lab.data.pipeline import Batches
from transformer_lab.data.ragged import Ragged, fill, lengths_of
from transformer_lab.data.shard_plans import ShardPlan
from transformer_lab.data.shard_rows import Needed, load_records
from transformer_lab.data.shards import Shards
from transformer_lab.tasks.base import HostBatch, shapes_of

Fields = dict[str, Ragged]
Columns = dict[str, np.ndarray | Ragged]  # one row an example; ragged: a value a token


class Bucketed:
    """A mix-in: a task has `sections`, `seed`, `tokenizer`, `model_config` and `encode_split`."""

    sections: dict[str, Any]
    seed: int
    FIELDS: tuple[str, ...] = ("tokens",)
    tokenizer: Any
    model_config: Any
    shards: Shards | None = None  # where the training examples lie, if not in memory
    # split -> token ids of its examples, and what else a batch holds of each
    encode_split: Callable[[str], tuple[Fields, Columns]]

    def check_rows(self, rows_multiple: int) -> None:
        """Refuses a mesh that batches cannot be divided over."""
        check_rows("rows_multiple", self.sections["batch"].rows_multiple, rows_multiple)

    def slots(self) -> tuple[int, int]:
        """Token places of a batch, and what its rows are a multiple of."""
        return self.sections["batch"].tokens_per_batch, self.sections["batch"].rows_multiple

    def fitting(self, split: str) -> tuple[Fields, Columns, int]:
        """The split without its examples that are too long for a batch, and how many these are."""
        fields, columns, kept, count = self.fitting_rows(split)
        return fields, columns, count - len(kept)

    def fitting_rows(self, split: str) -> tuple[Fields, Columns, np.ndarray, int]:
        """The same with the numbers of the rows that stay, and how many rows the split has."""
        fields, columns = self.encode_split(split)
        limit = self.model_config.max_length
        if split == "train":
            limit = np.minimum(limit, np.atleast_1d(self.longest()))
        kept = np.flatnonzero(fits(lengths_of(fields), limit))
        count = len(next(iter(fields.values())))
        if len(kept) < count:
            fields = {name: rows.take(kept) for name, rows in fields.items()}
            columns = {
                name: values.take(kept) if isinstance(values, Ragged) else values[kept]
                for name, values in columns.items()
            }
        return fields, columns, kept, count

    def longest(self) -> int | tuple[int, ...]:
        """Tokens of a training example at most: of any field, or of each."""
        return self.sections["batch"].max_length

    @cached_property
    def train_set(self) -> tuple[Fields, Columns, int]:
        return self.fitting("train")

    @cached_property
    def train_plan(self) -> BatchPlan:
        """The order and the shapes of the training batches."""
        if self.shards is not None:
            return self.shard_plan()
        lengths, slots = lengths_of(self.train_set[0]), self.slots()
        shapes = choose_buckets(lengths, self.sections["batch"].buckets, *slots)
        return BatchPlan(lengths, shapes, *slots, self.seed)

    def shard_plan(self, rates: np.ndarray | None = None) -> ShardPlan:
        """The same for prepared shards; `rates` mix their parts."""
        longest = np.minimum(self.model_config.max_length, np.atleast_1d(self.longest()))
        buckets = self.sections["batch"].buckets
        return ShardPlan(self.shards, longest, buckets, *self.slots(), self.seed, rates)

    @property
    def dropped(self) -> int:
        """Training examples that no batch takes, for their length."""
        return self.train_set[2] if self.shards is None else self.train_plan.dropped

    def steps_per_epoch(self) -> int:
        return self.train_plan.batches_per_epoch

    def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Of the longest examples that a batch holds; a task adds its columns."""
        tokens, multiple = self.slots()
        room = tokens // multiple // len(self.FIELDS)
        longest = np.minimum(self.longest(), min(self.model_config.max_length, room))
        shape = np.broadcast_to(longest, len(self.FIELDS)).tolist()
        rows, batch = rows_per_batch(shape, tokens, multiple), {}
        for name, length in zip(self.FIELDS, shape, strict=True):
            batch |= shapes_of((rows, length), **{name: np.int32, f"{name}_mask": bool})
        return batch

    def train_batches(self) -> Batches:
        if self.shards is not None:
            return Batches(self.train_plan, self.load_shards, by_rows=True)
        fields, columns, _ = self.train_set
        return Batches(self.train_plan, partial(self.load, fields, columns))

    def load_shards(self, ids: np.ndarray, shape: Shape, needed: Needed = None) -> HostBatch:
        """A batch of prepared records."""
        pad_id = self.tokenizer.pad_id
        return load_records(ids, shape, needed, shards=self.shards, pad_id=pad_id)

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        return self.in_order(*self.fitting(split)[:2])

    def in_order(self, fields: Fields, columns: Columns) -> Iterator[HostBatch]:
        """Each example once; a shape's rows keep the given order."""
        plan = self.order(fields)
        if plan is None:
            return iter(())
        return (self.load(fields, columns, ids, plan.shapes[bucket]) for bucket, ids in plan)

    def order(self, fields: Fields) -> BatchPlan | None:
        """The batches of `in_order`; the training shapes compile nothing new, what they do not
        hold gets one shape more."""
        lengths = lengths_of(fields)
        if not len(lengths):
            return None
        shapes = [shape for shape in self.eval_shapes() if len(shape) == lengths.shape[1]]
        shapes = shapes or list(self.train_plan.shapes)
        largest = np.maximum(lengths.max(axis=0), shapes[-1])
        if (largest > shapes[-1]).any():
            shapes.append(tuple(int(x) for x in largest))
        slots, multiple = self.slots()
        slots = max(slots, sum(shapes[-1]) * multiple)
        return BatchPlan(lengths, shapes, slots, multiple, shuffle=False)

    def eval_shapes(self) -> list[tuple[int, ...]]:
        """The shapes that evaluation tries first."""
        return self.train_plan.shapes

    def load(self, fields: Fields, columns: Columns, ids: np.ndarray, shape) -> HostBatch:
        """A batch: each field padded with its mask, each column; filler rows (-1) are 0."""
        batch = fill(fields, ids, shape, self.tokenizer.pad_id)
        for name, values in columns.items():
            if isinstance(values, Ragged):
                batch[name] = fill({name: values}, ids, shape[:1], 0)[name]
                continue
            row = (ids >= 0).reshape(-1, *[1] * (values.ndim - 1))
            batch[name] = np.where(row, values[ids], 0).astype(values.dtype)
        return batch

    def describe_batches(self) -> list[str]:
        """Lines for the report: padding and shapes."""
        plan = self.train_plan
        return [
            f"batches: {len(plan):,} an epoch, {100 * plan.padding_share():.1f} % padding, "
            f"{len(plan.shapes)} shapes (one compilation each):",
            *(f"  {line}" for line in plan.describe()),
        ]
