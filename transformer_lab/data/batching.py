"""Which examples share a batch, and in which shape: decided before anything is read."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int64

from transformer_lab.data.buckets import Shape, rows_per_batch, shape_name
from transformer_lab.data.buckets import choose_buckets as choose_buckets  # one import for callers
from transformer_lab.errors import LabError, at_least


@dataclass(frozen=True)
class BatchConfig:
    """How batches are made."""

    # Slots of a batch: padding included, all fields counted, over all devices and micro-batches.
    tokens_per_batch: int = 4096
    buckets: int = 6  # at most this many shapes; each costs a compilation
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
    """Refuses a mesh that a batch's rows cannot be divided over; `key` is the config's name."""
    if rows % rows_multiple:
        raise LabError(
            f"batch.{key} = {rows} is not divided by mesh.data x mesh.fsdp x "
            f"micro_batches = {rows_multiple}: set it to a multiple of that"
        )


@dataclass(frozen=True)
class RowCount:
    """How batches are made whose shape the data says."""

    rows: int = 64  # over all devices and micro-batches

    def __post_init__(self):
        at_least(self, "batch", 1, *(field.name for field in fields(self)))

    def check(self, rows_multiple: int) -> None:
        """Refuses a mesh that the rows cannot be divided over."""
        check_rows("rows", self.rows, rows_multiple)


@dataclass(frozen=True)
class RowsConfig(RowCount):
    """How batches are made: every one has the same shape."""

    rows: int = 16  # over all devices and micro-batches
    length: int = 128  # tokens of a row


def fits(
    lengths: Int[np.ndarray, "n fields"], max_length: int | Int[np.ndarray, "#fields"]
) -> Bool[np.ndarray, "n"]:
    """True for the examples of which no field is longer than `max_length`, or than its own."""
    return (lengths <= max_length).all(axis=1)


class Draws(NamedTuple):
    """A number at random beside each id: `stream` tells it from other random numbers of a step."""

    stream: int
    below: int
    of_filler: bool  # filler rows have one too, else -1


class BatchPlan:
    """The batches of every epoch, as a pure function of (seed, step).

    `plan[step]` is `(bucket, ids)`: the index of the batch's shape, and int64 ids of its rows.
    Every example comes exactly once an epoch, in the first shape that holds it. A bucket's last
    batch is filled up with the id -1, so a shape has one number of rows. Steps go on for ever,
    `batches_per_epoch` of them an epoch. With `shuffle` each epoch has its own order, and the
    buckets take turns at random; without, all epochs are alike and rows keep the data's order.
    A plan with `draws` gives int64 [rows, 2]: beside each id a number at random, from which is
    drawn what is random in the row.
    """

    name = ""  # of the kind of plan, in its fingerprint
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
        """Rows of each batch of a bucket, filler rows included."""
        return self._rows[bucket]

    @property
    def batches_per_epoch(self) -> int:
        return int(self._batches.sum())

    def __len__(self) -> int:
        return self.batches_per_epoch

    def __iter__(self) -> Iterator[tuple[int, Int64[np.ndarray, "rows"]]]:
        """The first epoch's batches."""
        return (self[step] for step in range(len(self)))

    def __getitem__(self, step: int) -> tuple[int, Int64[np.ndarray, "rows *more"]]:
        if step < 0:
            raise IndexError(f"step {step} is negative")
        bucket, ids = self._batch(*divmod(int(step), self.batches_per_epoch))
        return bucket, self._with_draws(ids, int(step))

    def _batch(self, epoch: int, place: int) -> tuple[int, np.ndarray]:
        # Prefetching threads meet here without a lock: each reads or replaces the pair as a whole.
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
            ids.flags.writeable = False  # the plan keeps them: nobody may change a later epoch
            batches += [(bucket, batch) for batch in ids]
        turns = rng.permutation(len(batches)) if self.shuffle else range(len(batches))
        return [batches[turn] for turn in turns]

    def _order(self, epoch: int, rng: np.random.Generator) -> np.ndarray:
        """The examples of an epoch, before buckets part them."""
        count = len(self._buckets)
        return rng.permutation(count) if self.shuffle else np.arange(count)

    def padding_share(self) -> float:
        """Share of an epoch's slots that hold no token, filler rows included."""
        slots = [rows * sum(shape) for rows, shape in zip(self._rows, self.shapes, strict=True)]
        return 1.0 - self._tokens() / float(self._batches @ slots)

    def _tokens(self) -> float:
        """Tokens of an epoch's examples."""
        return float(self.lengths.sum())

    def describe(self) -> list[str]:
        """One line a shape: its rows, and the batches and examples of an epoch."""
        return [
            f"{shape_name(shape)}: {rows} rows, {batches} batches, {examples} examples an epoch"
            for shape, rows, batches, examples in zip(
                self.shapes, self._rows, self._batches, self._examples, strict=True
            )
        ]

    @cached_property
    def _digest(self) -> str:
        text = f"{self.lengths.shape} {self.shapes} {self._rows} {self.seed} {self.shuffle}"
        return hashlib.sha256(text.encode() + self.lengths.astype("<i8").tobytes()).hexdigest()

    def fingerprint(self) -> str:
        """SHA-256 over all that decides the order: equal plans, and only they, share it."""
        if not self.name:
            return self._digest
        return hashlib.sha256(f"{self.name} {self._digest}".encode()).hexdigest()


ROW_DRAWS = Draws(2, 2**32, True)


class RowPlan(BatchPlan):
    """A plan of one shape: `rows` rows of `length` places, of which `filled` are taken in each."""

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
    """Refuses rows of no length, and batches of no row."""
    for key, value in (("length", length), ("rows", rows)):
        if value < 1:
            raise LabError(f"{key} must be at least 1, got {value}")


def _assign(lengths: np.ndarray, shapes: Sequence[Shape]) -> np.ndarray:
    """Index of the first shape that holds each example."""
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
