"""Plans which examples share a batch and its shape, from lengths alone."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int64

from transformer_lab.data.buckets import Shape, rows_per_batch, shape_name
from transformer_lab.data.buckets import choose_buckets as choose_buckets  # exported here too
from transformer_lab.errors import LabError, at_least
from transformer_lab.terminal import counted


@dataclass(frozen=True)
class BatchConfig:
    """Settings of batches whose examples have similar lengths, a token budget for each batch."""

    # Token positions of a batch: all fields, padding, devices and micro-batches included.
    tokens_per_batch: int = 4096
    buckets: int = 6  # the most batch shapes; each is compiled once
    # Rows are a multiple of this, which data x fsdp x micro-batches must divide. The config sets
    # it and not the devices, so that the batches are the same on any of them.
    rows_multiple: int = 8
    max_length: int = 256  # tokens of any field, end token included; longer examples are left out

    def __post_init__(self):
        for field in fields(BatchConfig):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise LabError(f"{field.name} must be a whole number from 1, got {value!r}")


def check_rows(key: str, rows: int, rows_multiple: int) -> None:
    """Raises: LabError if the mesh cannot divide the rows of `batch.{key}` evenly."""
    if rows % rows_multiple:
        raise LabError(
            f"batch.{key} = {rows} is not divided by mesh.data x mesh.fsdp x "
            f"micro_batches = {rows_multiple}: set it to a multiple of that"
        )


@dataclass(frozen=True)
class RowCount:
    """Settings of batches whose shape follows from the data; only the rows are chosen."""

    rows: int = 64  # over all devices and micro-batches

    def __post_init__(self):
        at_least(self, "batch", 1, *(field.name for field in fields(self)))

    def check(self, rows_multiple: int) -> None:
        """Raises: LabError if the mesh cannot divide the rows evenly."""
        check_rows("rows", self.rows, rows_multiple)


@dataclass(frozen=True)
class RowsConfig(RowCount):
    """Settings of batches that all have the same number of rows and the same length."""

    rows: int = 16  # over all devices and micro-batches
    length: int = 128  # tokens of a row


def fits(
    lengths: Int[np.ndarray, "n fields"], max_length: int | Int[np.ndarray, "#fields"]
) -> Bool[np.ndarray, "n"]:
    """True for examples of which no field is longer than `max_length`, or than its own limit."""
    return (lengths <= max_length).all(axis=1)


class Draws(NamedTuple):
    """Settings of a random number beside each id; `stream` separates it from others of a step."""

    stream: int
    below: int
    of_filler: bool  # padding rows get a random number too, else -1


class BatchPlan:
    """The batches of every epoch, as a pure function of (seed, step).

    `plan[step]` is `(bucket, ids)`: the index of the batch's shape, and int64 ids of its rows. Each
    epoch has every example once, in the first shape that holds it. A bucket's last batch is filled
    with the id -1, so that a shape always has the same number of rows. Steps have no end; an epoch
    is `batches_per_epoch` of them. With `shuffle`, examples and buckets are shuffled in each epoch;
    without, all epochs are alike and rows keep the data's order.

    A plan with `draws` gives int64 [rows, 2]: each id with a random seed for its row."""

    name = ""  # names the kind of plan in its fingerprint
    draws: Draws | None = None

    def __init__(
        self,
        lengths: Int[np.ndarray, "n fields"],
        shapes: Sequence[Shape],
        tokens_per_batch: int,
        multiple: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ):
        if seed < 0:
            raise LabError(f"seed must not be negative, got {seed}")
        self.lengths = np.asarray(lengths, np.int64)
        self.shapes = [tuple(int(length) for length in shape) for shape in shapes]
        self.seed, self.shuffle = seed, shuffle
        self._rows = [rows_per_batch(shape, tokens_per_batch, multiple) for shape in self.shapes]
        self._buckets = _assign(self.lengths, self.shapes)
        self._examples = np.bincount(self._buckets, minlength=len(self.shapes))
        self._batches = -(-self._examples // self._rows)
        self._epoch = (-1, [])

    def rows(self, bucket: int) -> int:
        """The number of rows in each batch of a bucket, padding rows included."""
        return self._rows[bucket]

    @property
    def batches_per_epoch(self) -> int:
        return int(self._batches.sum())

    def __len__(self) -> int:
        return self.batches_per_epoch

    def __iter__(self) -> Iterator[tuple[int, Int64[np.ndarray, "rows"]]]:
        """Iterates over the batches of the first epoch only."""
        return (self[step] for step in range(len(self)))

    def __getitem__(self, step: int) -> tuple[int, Int64[np.ndarray, "rows *more"]]:
        if step < 0:
            raise IndexError(f"step {step} is negative")
        bucket, ids = self._batch(*divmod(int(step), self.batches_per_epoch))
        return bucket, self._with_draws(ids, int(step))

    def _batch(self, epoch: int, place: int) -> tuple[int, np.ndarray]:
        # Prefetching threads need no lock here: they read or replace the tuple as a whole.
        cached = self._epoch
        if cached[0] != epoch:
            cached = self._epoch = (epoch, self._make(epoch))
        return cached[1][place]

    def _with_draws(self, ids: np.ndarray, step: int) -> np.ndarray:
        if self.draws is None:
            return ids
        stream, below, of_filler = self.draws
        found = np.random.default_rng((self.seed, step, stream)).integers(below, size=ids.shape)
        return np.stack([ids, found if of_filler else np.where(ids < 0, -1, found)], axis=-1)

    def _make(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        rng = np.random.default_rng((self.seed, epoch))
        order = self._order(epoch, rng)
        batches = []
        for bucket, rows in enumerate(self._rows):
            ids = np.full((self._batches[bucket], rows), -1, np.int64)
            ids.flat[: self._examples[bucket]] = order[self._buckets[order] == bucket]
            ids.flags.writeable = False  # cached, so callers must not change them
            batches += [(bucket, batch) for batch in ids]
        turns = rng.permutation(len(batches)) if self.shuffle else range(len(batches))
        return [batches[turn] for turn in turns]

    def _order(self, epoch: int, rng: np.random.Generator) -> np.ndarray:
        """The order of an epoch's examples, before they are divided into buckets."""
        count = len(self._buckets)
        return rng.permutation(count) if self.shuffle else np.arange(count)

    def padding_share(self) -> float:
        """The share of an epoch's token positions that are padding, padding rows included."""
        slots = [rows * sum(shape) for rows, shape in zip(self._rows, self.shapes, strict=True)]
        return 1.0 - self._tokens() / float(self._batches @ slots)

    def _tokens(self) -> float:
        """The number of tokens in an epoch's examples, without padding."""
        return float(self.lengths.sum())

    def describe(self) -> list[str]:
        """A line for each shape: its rows, and its batches and examples in an epoch."""
        return [
            f"{shape_name(shape)}: {counted(rows, 'row')}, {counted(batches, 'batch')}, "
            f"{counted(examples, 'example')} an epoch"
            for shape, rows, batches, examples in zip(
                self.shapes, self._rows, self._batches, self._examples, strict=True
            )
        ]

    @cached_property
    def _digest(self) -> str:
        text = f"{self.lengths.shape} {self.shapes} {self._rows} {self.seed} {self.shuffle}"
        return hashlib.sha256(text.encode() + self.lengths.astype("<i8").tobytes()).hexdigest()

    def fingerprint(self) -> str:
        """A SHA-256 of everything that decides the order; only equal plans share it."""
        if not self.name:
            return self._digest
        return hashlib.sha256(f"{self.name} {self._digest}".encode()).hexdigest()


ROW_DRAWS = Draws(2, 2**32, True)


class RowPlan(BatchPlan):
    """A plan of one shape: `rows` rows of `length` positions, `filled` of them used in each."""

    def __init__(
        self,
        name: str,
        filled: Int[np.ndarray, "n"],
        length: int,
        rows: int,
        seed: int,
        draws: Draws | None = ROW_DRAWS,
    ):
        check_row_shape(length, rows)
        super().__init__(filled[:, None], [(length,)], rows * length, seed=seed)
        self.name, self.draws = name, draws


def check_row_shape(length: int, rows: int) -> None:
    """Raises: LabError for a length or a number of rows below 1."""
    for key, value in (("length", length), ("rows", rows)):
        if value < 1:
            raise LabError(f"{key} must be at least 1, got {value}")


def _assign(lengths: np.ndarray, shapes: Sequence[Shape]) -> np.ndarray:
    """The index of the first shape that holds each example; LabError if none does."""
    if any(len(shape) != lengths.shape[1] for shape in shapes):
        raise LabError(f"batch shapes {list(shapes)} must give {lengths.shape[1]} lengths each")
    if len(lengths) == 0:
        raise LabError("no example to batch: the data is empty, or max_length left nothing")
    buckets = np.full(len(lengths), -1, np.int64)
    for bucket in reversed(range(len(shapes))):
        buckets[(lengths <= np.asarray(shapes[bucket])).all(axis=1)] = bucket
    if (buckets < 0).any():
        lost = int(buckets.argmin())
        raise LabError(
            f"example {lost} of {shape_name(lengths[lost].tolist())} tokens fits none of the"
            f" {len(shapes)} batch shapes: lower max_length, or choose shapes from these lengths"
        )
    return buckets
