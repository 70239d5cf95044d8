"""Classification of a text or of two texts, or regression (Devlin 2019, section 4.1)."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab.data import labelled
from transformer_lab.data.sources.files import place_of
from transformer_lab.errors import LabError, known
from transformer_lab.ops.losses import Pair, cross_entropy, masked_sum, weights_of
from transformer_lab.tasks import scores
from transformer_lab.tasks.base import Batch, Params, Place, Scores
from transformer_lab.tasks.bucketed import Columns, Fields
from transformer_lab.tasks.encoder_task import TEXTS, EncoderTask, ragged
from transformer_lab.tasks.labels import Labelled


@dataclass(frozen=True)
class ClassificationConfig:
    """Settings of text classification, the config section `task`."""

    regression: bool = False  # labels are numbers, the loss is the squared error
    label_smoothing: float = 0.0  # share of the target's probability that all classes share
    class_weights: str = ""  # in the training loss: "balanced", or "label=2.5,label=0.5"
    positive_label: str = ""  # the class that F1 is computed for; "": the mean over all
    samples: int = 8  # texts shown at the end with their predictions

    def __post_init__(self):
        if self.regression and self.class_weights:
            raise LabError("task.class_weights is of classes, and task.regression has none")


SECTIONS = {"task": ClassificationConfig, **TEXTS}


class Classification(Labelled, EncoderTask):
    """Predicts the class of a text or of two texts, or a number for it.

    A batch also holds `label` [rows]: int32, or float32 for a regression. "good film" of the class
    "yes" and "bad bad" of the class "no", between the start (2) and the end (1):

        tokens       [[2, 6, 5, 1, 0, 0], [2, 4, 4, 1, 0, 0]]
        tokens_mask  [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0]]
        label        [1, 0]
    """

    HEAD = "classes"
    ONE_OF_MANY = True

    @property
    def PER_ROW(self) -> dict[str, type]:
        return {"label": np.float32 if self.config.regression else np.int32}

    @cached_property
    def labels(self) -> list[str]:
        found = [] if self.config.regression else super().labels
        if self.config.positive_label:
            known("task.positive_label = ", self.config.positive_label, found)
        return found

    def train_labels(self) -> Iterator[str]:
        return (str(row.label) for row in self.data.train)

    def train_texts(self) -> Iterator[str]:
        return (part for row in self.data.train for part in row[:2] if part is not None)

    def encode_texts(self, texts: Sequence[str], pairs: Sequence[str | None]) -> Fields:
        """Token ids of each text, joined with its second text where that is not None."""
        second = [None if pair is None else self.tokenizer.encode(pair) for pair in pairs]
        first = self.tokenizer.encode_batch(texts)
        return ragged([self.encode(a, b) for a, b in zip(first, second, strict=True)])

    def encode_split(self, split: str) -> tuple[Fields, Columns]:
        rows = self.examples(split)
        fields = self.encode_texts([row.text for row in rows], [row.pair for row in rows])
        return fields, {"label": self.targets(split, rows)}

    def targets(self, split: str, rows: Sequence[labelled.Example]) -> np.ndarray:
        """The class index of each row, or its number in a regression; else raises LabError."""
        values, number = [], {label: i for i, label in enumerate(self.labels)}
        for row in rows:
            value = _finite(row.label) if self.config.regression else number.get(row.label)
            if value is None:
                where = place_of(row, split, self.sections["data"])
                raise LabError(
                    f'{where}the {split} row "{row.text[:40]}" has the label '
                    f"{json.dumps(row.label)}: " + self._reason(row.label)
                )
            values.append(value)
        return np.asarray(values, self.PER_ROW["label"])

    def _reason(self, label: str | float | None) -> str:
        if label is None:
            return "name the column of the labels in config.data.label_column"
        if self.config.regression:
            return "task.regression = True needs a finite number in every row"
        if isinstance(label, float):
            return "for numbers with a point set task.regression = True; classes are whole numbers"
        return f"it is none of the model's, {', '.join(self.labels)[:200]}"

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The loss, cross-entropy of classes or squared error of a regression, and the accuracy."""
        logits = self.apply(params, batch, dropout_key)["logits"]
        label, real = batch["label"], batch["tokens_mask"][:, 0]
        if self.config.regression:
            return {"loss": masked_sum(jnp.square(logits[:, 0] - label), real)}
        right = (logits.argmax(axis=-1) == label).astype(jnp.float32)
        nats = cross_entropy(logits, label, self.config.label_smoothing if training else 0.0)
        weights = weights_of(label, self.class_weights) if training else None
        return {"loss": masked_sum(nats, real, weights), "accuracy": masked_sum(right, real)}

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """F1 and Matthews' correlation of classes, or Pearson's and Spearman's of numbers."""
        fields, columns, _ = self.fitting(split)
        if not len(fields["tokens"]):
            return Scores()
        logits = np.stack(self.outputs(params, fields, columns, place))
        gold = columns["label"].tolist()
        if self.config.regression:
            guess, name = logits[:, 0].tolist(), "{:.3g}".format
            values = {
                "pearson": scores.pearson(gold, guess),
                "spearman": scores.spearman(gold, guess),
            }
        else:
            guess, name = logits.argmax(axis=-1).tolist(), self.labels.__getitem__
            label = self.config.positive_label
            positive = self.labels.index(label) if label else None
            values = {
                "f1": scores.f1(gold, guess, positive),
                "matthews": scores.matthews(gold, guess),
            }
        rows = zip(self.examples(split)[: self.shown(final)], guess, gold, strict=False)
        samples = [(row.text[:200], name(g), name(right)) for row, g, right in rows]
        confusion = {} if self.config.regression else self.confusion(gold, guess)
        values |= {"num_examples": len(gold)}
        return Scores(values, samples, confusion=confusion)

    def predict(self, params: Params, texts: Sequence[str], place: Place) -> list[dict]:
        """The label and probabilities, or the number, of each text; "A<tab>B" holds two texts."""
        parts = [[*line.split("\t", 1), None][:2] for line in texts]
        fields = self.encode_texts(*([part[i] for part in parts] for i in (0, 1)))
        columns = {"label": np.zeros(len(texts), np.int32)}
        found = self.outputs(params, fields, columns, place)
        if self.config.regression:
            both = zip(texts, found, strict=True)
            return [{"text": line, "value": float(logits[0])} for line, logits in both]
        chances = [np.asarray(jax.nn.softmax(logits)) for logits in found]
        both = zip(texts, chances, strict=True)
        return [{"text": line, **self.likeliest(row)} for line, row in both]


def _finite(label: str | float | None) -> float | None:
    """The label as a float, or None if it is not a finite number."""
    try:
        value = float("nan" if label is None else label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


build = Classification
SHOWN = ("accuracy",)
BASELINE = "texts"
