"""What every objective shares: the constructor, the data, the losses and the report of a task."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from transformer_lab import models, text
from transformer_lab.data.pipeline import Batches
from transformer_lab.data.shards import Shards, open_shards
from transformer_lab.data.splits import Splits, remarks
from transformer_lab.ops.losses import STATISTICS, Pair
from transformer_lab.tasks.building import Shapes, table_size
from transformer_lab.tasks.building import stand_in as stand_in  # callers need this file only

Batch = dict[str, Array]
HostBatch = dict[str, np.ndarray]
Params = Any
Place = Callable[[HostBatch], Batch]


@dataclass(frozen=True)
class Scores:
    """Scores of a whole split, with what is printed or stored beside them."""

    values: dict[str, float] = field(default_factory=dict)
    samples: list[tuple[str, ...]] = field(default_factory=list)  # table rows that show outputs
    notes: dict[str, str] = field(default_factory=dict)  # such as BLEU's signature
    files: dict[str, bytes] = field(default_factory=dict)  # written to the run's directory
    # The classes, and how many examples of each true one were taken for each one
    confusion: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Joint:
    """A `loss` that compares all examples of a batch with each other.

    Micro-batches then only save memory: the vectors of the whole batch are computed first by
    `embed` (one row for each example), then the loss, whose gradient with respect to the vectors is
    propagated back through each micro-batch (Gao 2021, section 3)."""

    embed: Callable[[Params, Batch, Key[Array, ""]], dict[str, Array]]
    compare: Callable[[Params, dict[str, Array], Batch], dict[str, Pair]]

    def __call__(self, params: Params, batch: Batch, dropout_key: Key[Array, ""]):
        return self.compare(params, self.embed(params, batch, dropout_key), batch)


class Task(ABC):
    """An objective on a model and its data: all that the trainer asks for.

    The file of a task says where its data comes from (`load_data`), what a batch holds
    (`train_plan`, `load_train`, `eval_batches`, `abstract_batch`), its loss (`sums`), its
    scores (`score`) and what its report says besides the data's counts (`details`).
    """

    NEEDS: type  # the protocol of `models.base` that the model must implement
    HEAD = ""  # the head that a text encoder gets
    PREPARED = ""  # the name under which `prepare` writes its examples; "": it reads no shards
    COUNTED = "examples"  # what examples are called in the report
    TRAINED: tuple[str, ...] = ("loss",)  # the entries of `sums` that a training step reports
    load_data: Callable[[Any], Splits]  # the splits that the section `data` describes
    tokenizer: Any = None
    labels: Sequence[str] = ()  # the names of the model's output classes

    def __init__(
        self,
        model_kind: str,
        model_config: Any,
        sections: dict[str, Any],
        assets: dict[str, bytes] | None = None,
        seed: int = 0,
        rows_multiple: int = 1,
    ):
        """`assets` are the files of a checkpoint, None for a new run; `rows_multiple` divides the
        rows of each batch. Raises: LabError for settings that do not go together."""
        self.config, self.sections, self.assets_given = sections["task"], sections, assets
        models.need(model_kind, self.NEEDS, self.HEAD)
        self.seed, self.rows_multiple = seed, rows_multiple
        self.check(model_kind, model_config)
        self.tokenizer = self.find_tokenizer()
        self.model_config = self.fit(model_config)
        self.family = models.family(model_kind)
        self.model = self.family.build(self.model_config)

    def check(self, model_kind: str, model_config: Any) -> None:
        """Raises: LabError for settings that do not go together, before any data is read."""
        self.sections["batch"].check(self.rows_multiple)

    def find_tokenizer(self) -> Any:
        """The checkpoint's tokenizer, else the one that the data was prepared with, else a new
        one, trained on the training texts; None for images."""
        if "tokenizer" not in self.sections:
            return None
        if self.assets_given is not None:
            return text.load(self.assets_given)
        if self.shards is not None:
            return self.shards.tokenizer()
        return text.train(self.sections["tokenizer"], self.train_texts())

    def train_texts(self) -> Iterable[str]:
        """The texts on which a new tokenizer is trained; by default the training examples."""
        return self.examples("train")

    def fit(self, model_config: Any) -> Any:
        """The model's settings completed with what the data says, such as the vocabulary's size."""
        size = table_size(model_config.vocab_size, self.tokenizer.vocab_size)
        return replace(model_config, vocab_size=size)

    # The data.

    @cached_property
    def data(self) -> Splits:
        """The training, validation and test examples, loaded when first used."""
        return type(self).load_data(self.sections["data"])

    def examples(self, split: str) -> Any:
        """The examples of the split "train", "validation" or "test"."""
        return getattr(self.data, split)

    @property
    def reads_shards(self) -> bool:
        """Whether the training examples are read from a directory that `prepare` wrote."""
        return bool(self.PREPARED) and self.sections["data"].source == "shards"

    @cached_property
    def shards(self) -> Shards | None:
        """The prepared directory of the training examples, or None where they are in memory."""
        if not self.reads_shards:
            return None
        settings = self.sections["data"], self.sections["tokenizer"]
        return open_shards(*settings, self.PREPARED, self.tokenizer)

    def fingerprint(self) -> str:
        """A digest of the data's content; a run refuses to resume if it has changed."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return self.shards.fingerprint if self.shards else self.data.fingerprint()

    # The start of a run.

    @property
    def keeps_start(self) -> bool:
        """Whether the run keeps its parameters of step 0 for `begin`, when it is resumed."""
        return False

    def begin(self, params: Params, place: Place) -> None:  # noqa: B027 most tasks need none
        """Called before training with the whole model's parameters at step 0: in a new run, and in
        a resumed one that keeps them. What else it needs when it is resumed is in its `assets`."""

    # The batches.

    train_plan: Any  # the order of the batches: `plan[step]` is (shape index, row ids)
    load_train: Callable[..., HostBatch]  # loads the batch of the rows in the plan

    def steps_per_epoch(self) -> int:
        """The number of batches in one pass over the training set."""
        return self.train_plan.batches_per_epoch

    def train_batches(self) -> Batches:
        """An endless iterator over training batches from step 0, or a restored position."""
        return Batches(self.train_plan, self.load_train, by_rows=self.shards is not None)

    def complete(
        self, batch: HostBatch, step: int, params: Callable[[], Params], place: Place
    ) -> HostBatch:
        """A training batch with what depends on the parameters of its step, such as texts that the
        model draws: a function of (seed, step, parameters). By default the batch as it is."""
        return batch

    @abstractmethod
    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        """Batches that hold each example of a split exactly once."""

    @abstractmethod
    def abstract_batch(self) -> Shapes:
        """The shapes of the largest training batch, from the config alone: no data is read."""

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        """The number of real examples and tokens in a batch, for the reported rates. Counts the
        True entries of the masks, whose first column is False only in rows that pad the batch."""
        masks = [mask for name, mask in batch.items() if name.endswith("_mask")]
        return {"examples": int(masks[0][:, 0].sum()), "tokens": int(sum(m.sum() for m in masks))}

    # What the trainer compiles.

    def init(self, key: Key[Array, ""]) -> Params:
        """The initial parameters of the model, a tree of arrays."""
        return self.model.init(key, *self.family.example_inputs())["params"]

    def sums(
        self, params: Params, batch: Batch, dropout_key: Key[Array, ""] | None, training: bool
    ) -> dict[str, Pair]:
        """Losses and metrics as (sum, weight). In `training` the loss may be smoothed or weighted,
        which an evaluation's is not. Tasks whose training and evaluation share nothing define
        `loss` and `metrics` instead."""
        raise TypeError(f"{type(self).__name__} has neither `sums` nor a `loss` and `metrics`")

    def loss(
        self, params: Params, batch: Batch, dropout_key: Key[Array, ""] | None
    ) -> dict[str, Pair]:
        """Training sums: "loss", which the optimizer minimises, and others such as the model's own
        (see `layers.told`). Weights depend on the batch only. It may be a `Joint`."""
        found = self.sums(params, batch, dropout_key, True)
        return {name: found[name] for name in self.TRAINED if name in found}

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        """Losses and scores of an evaluation batch as (sum, weight), computed without dropout."""
        return self.sums(params, batch, None, False)

    # What the run scores, reports and keeps.

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """Scores that sums over batches cannot give, such as BLEU; `final`: training has ended."""
        return Scores()

    def shown(self, final: bool) -> int:
        """The number of samples to print with the scores: none before training has ended."""
        return self.config.samples if final else 0

    def assets(self) -> dict[str, bytes]:
        """Files that a checkpoint needs beside the weights, such as the tokenizer's."""
        return {} if self.tokenizer is None else self.tokenizer.to_files()

    def kept_files(self) -> dict[str, bytes] | None:
        """The files that were given, without those that a new run makes of its own data."""
        return self.assets_given

    def decode_settings(self, rows: int = 0) -> Any:
        """The section `decode`, with ids that stand for no token banned, and `rows` (else the
        section's batch size) rounded up to a multiple that the devices can divide."""
        decode, tok = self.sections["decode"], self.tokenizer
        rows = -(-(rows or decode.batch_size) // self.rows_multiple) * self.rows_multiple
        banned = *decode.banned_tokens, *tok.unused(self.model_config.vocab_size)
        return replace(decode, batch_size=rows, banned_tokens=banned)

    def report(self) -> list[str]:
        """Lines for the start of a run: its data and splits, then the task's own."""
        counts = ", ".join(f"{name} {count:,}" for name, count in self.data.report.items())
        return [
            f"{self.COUNTED}: {counts}; licence: {self.data.licence}",
            *remarks(self.data.report, self.sections["data"], self.classes()),
            *self.details(),
        ]

    def classes(self) -> Mapping[str, Set[str]] | None:
        """The set of classes found in each split, or None if the data has no classes."""
        return None

    def details(self) -> list[str]:
        """Lines of the report about tokens and batches, printed after the data's counts."""
        return []

    def describe_tokens(self, texts: Sequence[str]) -> str:
        """A phrase for the report: tokens per word, and the percentage of unknown tokens."""
        found = text.statistics(self.tokenizer, texts)
        return (
            f"{found['tokens_per_word']:.2f} tokens a word, "
            f"{100 * found['unknown_rate']:.2f} % unknown"
        )


def learned(params: Params) -> Params:
    """The parameters that gradients train, which are all but the running statistics."""
    return {name: tree for name, tree in params.items() if name != STATISTICS}


def count_parameters(params: Params) -> int:
    """The number of trained parameters in a tree of arrays; running statistics do not count."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(learned(params)))
