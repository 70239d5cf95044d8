"""What the trainer asks of a task. A task is one file that provides these."""

import collections
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Key

from transformer_lab import text
from transformer_lab.errors import LabError, nearest
from transformer_lab.ops.losses import STATISTICS, Pair

Batch = dict[str, Array]
HostBatch = dict[str, np.ndarray]
Params = Any
Place = Callable[[HostBatch], Batch]


@dataclass(frozen=True)
class Scores:
    """What decoding or another whole-split evaluation found."""

    values: dict[str, float]
    samples: list[tuple[str, ...]]  # rows of a table that shows the model at work
    notes: dict[str, str]  # what a score needs beside it, such as its signature
    files: dict[str, bytes] = field(default_factory=dict)  # for the run's directory, such as a PNG


@runtime_checkable
class TrainingBatches(Protocol):
    """An endless iterator of batches whose order is a function of (seed, step)."""

    def __next__(self) -> HostBatch: ...
    def get_state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Joint:
    """A `loss` that compares all rows of a batch with each other.

    Micro-batches then change nothing but the memory: the vectors of all are computed first
    (`embed`: one row an example), then the loss, and each is differentiated by its vectors' own
    gradient (Gao 2021, section 3).
    """

    embed: Callable[[Params, Batch, Key[Array, ""]], dict[str, Array]]
    compare: Callable[[Params, dict[str, Array], Batch], dict[str, Pair]]

    def __call__(self, params: Params, batch: Batch, dropout_key: Key[Array, ""]):
        return self.compare(params, self.embed(params, batch, dropout_key), batch)


@runtime_checkable
class Task(Protocol):
    """An objective on a model and its data."""

    model_config: Any  # the model's settings, its vocabulary known

    def init(self, key: Key[Array, ""]) -> Params:
        """Initial parameters."""

    def loss(self, params: Params, batch: Batch, dropout_key: Key[Array, ""]) -> dict[str, Pair]:
        """Training sums; "loss" is what the optimizer lowers, with what the model tells besides
        (see `layers.told`). Weights depend on the batch only. May be a `Joint`."""

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        """Evaluation sums, without dropout. "loss" is in nats."""

    def steps_per_epoch(self) -> int:
        """Batches of one pass over the training set."""

    def train_batches(self) -> TrainingBatches:
        """From step 0; a restored run sets its position."""

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        """Each example of `validation` or `test` once."""

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """Scores beyond sums, such as BLEU of decoded text. `final`: of the finished model."""

    def fingerprint(self) -> str:
        """Of the data's content: a run is not resumed on other data."""

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        """How many real `examples` and `tokens` a batch holds, for the rates."""

    def assets(self) -> dict[str, bytes]:
        """Files that a checkpoint needs beside the weights, such as the tokenizer's."""

    def report(self) -> list[str]:
        """Lines for the start of a run: data, tokenizer, shapes."""


@runtime_checkable
class KnownBatch(Protocol):
    """A task whose batches have a shape that the config alone decides."""

    def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of the largest training batch, without reading the data."""


def stand_in(model: Any, sections: dict[str, Any]) -> dict[str, bytes]:
    """Assets with which a task is built without its data: as many pieces, labels and pixels as
    the config says, and no content."""
    labels = getattr(model, "classes", 0) or getattr(model, "labels", 0) or 2
    files = {"labels.json": json.dumps([str(i) for i in range(labels)]).encode()}
    if hasattr(model, "image_size"):
        half = [0.5] * model.channels
        form = {"size": model.image_size, "channels": model.channels, "mean": half, "std": half}
        files["images.json"] = json.dumps(form).encode()
    if "tokenizer" in sections:
        config, size = sections["tokenizer"], getattr(model, "text", model).vocab_size
        if size:  # the table is the model's own: no more pieces than that
            config = replace(config, vocab_size=min(config.vocab_size, size - config.extra_ids))
        files |= text.StandIn.train(config).to_files()
    return files


def class_weights(
    setting: str, labels: Sequence[str], train: Callable[[], Iterable[Any]]
) -> np.ndarray | None:
    """Each class's weight in the training loss, or None where all count alike.

    "balanced" is n / (classes * count) of the n training labels, as in scikit-learn; else
    "spam=4,ham=0.5" names some classes, and the others have 1. `train` gives the training set's
    labels. Raises: LabError for what is neither.
    """
    if not setting:
        return None
    if setting == "balanced":
        count = collections.Counter(train())
        total = sum(count.values())
        return np.asarray([total / len(labels) / max(count[x], 1) for x in labels], np.float32)
    weights = dict.fromkeys(labels, 1.0)
    for part in setting.split(","):
        name, _, weight = part.rpartition("=")
        try:
            value = float(weight)
        except ValueError:
            value = -1.0
        if not name or not 0 <= value < float("inf"):
            raise LabError(f'task.class_weights: "{part}" is neither "balanced" nor "label=weight"')
        if name not in weights:
            raise LabError(f'task.class_weights: "{name}" is no label{nearest(name, labels)}')
        weights[name] = value
    return np.asarray(list(weights.values()), np.float32)


def shapes_of(dims: Sequence[int], **dtypes: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """An abstract array of one shape for each name."""
    return {name: jax.ShapeDtypeStruct(tuple(dims), dtype) for name, dtype in dtypes.items()}


def table_size(size: int | None, pieces: int) -> int:
    """Rows of an embedding: the model's own number, which must hold the tokenizer's pieces."""
    if size is not None and size < pieces:
        raise LabError(
            f"model.vocab_size = {size}, but the tokenizer has {pieces} pieces: leave it unset"
        )
    return size or pieces


def learned(params: Params) -> Params:
    """Those that gradients train: all but running statistics."""
    return {name: tree for name, tree in params.items() if name != STATISTICS}


def count_parameters(params: Params) -> int:
    """Numbers in a tree of arrays or shapes, running statistics aside."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(learned(params)))
