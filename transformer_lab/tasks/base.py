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
from transformer_lab.tasks.building import stand_in as stand_in  # for who knows this file alone

Batch = dict[str, Array]
HostBatch = dict[str, np.ndarray]
Params = Any
Place = Callable[[HostBatch], Batch]


@dataclass(frozen=True)
class Scores:
    """What decoding or another evaluation of a whole split found."""

    values: dict[str, float] = field(default_factory=dict)
    samples: list[tuple[str, ...]] = field(default_factory=list)  # a table of the model at work
    notes: dict[str, str] = field(default_factory=dict)  # beside a score, such as its signature
    files: dict[str, bytes] = field(default_factory=dict)  # for the run's directory, such as a PNG


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


class Task(ABC):
    """An objective on a model and its data: all that the trainer asks for.

    The file of a task says where its data comes from (`load_data`), what a batch holds
    (`train_plan`, `load_train`, `eval_batches`, `abstract_batch`), its loss (`sums`), its
    scores (`score`) and what its report says besides the data's counts (`details`).
    """

    NEEDS: type  # what a family of models must offer, a protocol of `models.base`
    HEAD = ""  # of a text encoder
    PREPARED = ""  # as what `prepare` writes the task's examples; "": the task reads no shards
    COUNTED = "examples"  # what the report calls the rows of the data
    TRAINED: tuple[str, ...] = ("loss",)  # those of `sums` that a training step reports
    load_data: Callable[[Any], Splits]  # the splits that the section `data` describes
    tokenizer: Any = None
    labels: Sequence[str] = ()  # the classes that the model's outputs stand for

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
        """Refuses settings that do not go together, before anything is read."""
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
        """The texts that a new tokenizer is trained on."""
        return self.examples("train")

    def fit(self, model_config: Any) -> Any:
        """The model's settings with what is known by now, such as the size of its vocabulary."""
        size = table_size(model_config.vocab_size, self.tokenizer.vocab_size)
        return replace(model_config, vocab_size=size)

    # The data.

    @cached_property
    def data(self) -> Splits:
        """The examples of each split."""
        return type(self).load_data(self.sections["data"])

    def examples(self, split: str) -> Any:
        """The rows of the split "train", "validation" or "test"."""
        return getattr(self.data, split)

    @property
    def reads_shards(self) -> bool:
        """Whether the training examples lie in a prepared directory."""
        return bool(self.PREPARED) and self.sections["data"].source == "shards"

    @cached_property
    def shards(self) -> Shards | None:
        """That directory, or None where the examples are in memory."""
        if not self.reads_shards:
            return None
        settings = self.sections["data"], self.sections["tokenizer"]
        return open_shards(*settings, self.PREPARED, self.tokenizer)

    def fingerprint(self) -> str:
        """A digest of the data's content: a run is not resumed on other data."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return self.shards.fingerprint if self.shards else self.data.fingerprint()

    # The batches.

    train_plan: Any  # the order of the training batches: `plan[step]` is (shape number, row ids)
    load_train: Callable[..., HostBatch]  # a batch of the rows that the plan names

    def steps_per_epoch(self) -> int:
        """Batches of one pass over the training set."""
        return self.train_plan.batches_per_epoch

    def train_batches(self) -> Batches:
        """Training batches without end, from step 0 on; a restored run sets its position."""
        return Batches(self.train_plan, self.load_train, by_rows=self.shards is not None)

    @abstractmethod
    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        """Each example of a split once."""

    @abstractmethod
    def abstract_batch(self) -> Shapes:
        """The shapes of the largest training batch, from the config alone: no data is read."""

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        """How many real examples and tokens a batch holds, for the rates: what is True in the
        masks, whose first column is True in every row that is no filler."""
        masks = [mask for name, mask in batch.items() if name.endswith("_mask")]
        return {"examples": int(masks[0][:, 0].sum()), "tokens": int(sum(m.sum() for m in masks))}

    # What the trainer compiles.

    def init(self, key: Key[Array, ""]) -> Params:
        """Initial parameters."""
        return self.model.init(key, *self.family.example_inputs())["params"]

    def sums(
        self, params: Params, batch: Batch, dropout_key: Key[Array, ""] | None, training: bool
    ) -> dict[str, Pair]:
        """Losses and metrics as (sum, weight); "loss" is in nats where it is of classes. In
        `training` it may be smoothed or weighted, as an evaluation's is not. A task whose training
        and evaluation have nothing in common says `loss` and `metrics` in its stead."""
        raise TypeError(f"{type(self).__name__} has neither `sums` nor a `loss` and `metrics`")

    def loss(
        self, params: Params, batch: Batch, dropout_key: Key[Array, ""] | None
    ) -> dict[str, Pair]:
        """Training sums; "loss" is what the optimizer lowers, with what the model tells besides
        (see `layers.told`). Weights depend on the batch only. May be a `Joint`."""
        found = self.sums(params, batch, dropout_key, True)
        return {name: found[name] for name in self.TRAINED if name in found}

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        """Evaluation sums, without dropout."""
        return self.sums(params, batch, None, False)

    # What the run scores, reports and keeps.

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """Scores beyond sums, such as BLEU of decoded text. `final`: of the finished model."""
        return Scores()

    def shown(self, final: bool) -> int:
        """How many samples a score shows: none before the model is finished."""
        return self.config.samples if final else 0

    def assets(self) -> dict[str, bytes]:
        """Files that a checkpoint needs beside the weights, such as the tokenizer's."""
        return {} if self.tokenizer is None else self.tokenizer.to_files()

    def decode_settings(self, rows: int = 0) -> Any:
        """The section `decode`, for as many rows as the devices divide, which never generates an id
        that no piece has; `rows` at once, else as the section says."""
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
        """The classes that stand in each split, None where the data has none."""
        return None

    def details(self) -> list[str]:
        """The report's lines about tokens and batches."""
        return []

    def describe_tokens(self, texts: Sequence[str]) -> str:
        """How a text is divided into tokens."""
        found = text.statistics(self.tokenizer, texts)
        return (
            f"{found['tokens_per_word']:.2f} tokens a word, "
            f"{100 * found['unknown_rate']:.2f} % unknown"
        )


def learned(params: Params) -> Params:
    """Those that gradients train: all but running statistics."""
    return {name: tree for name, tree in params.items() if name != STATISTICS}


def count_parameters(params: Params) -> int:
    """Numbers in a tree of arrays or shapes, running statistics aside."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(learned(params)))
