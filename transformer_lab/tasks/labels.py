"""What tasks with classes share: their names, their weights in the loss, and the likeliest one."""

import collections
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from transformer_lab.errors import LabError, known
from transformer_lab.tasks.base import Task

Indices = Sequence[int] | Integer[np.ndarray, "n"]  # of classes
LABELS = "labels.json"  # the file of a checkpoint that names the classes, in their order


class Labelled(Task):
    """A task whose model has one output for each class of the data."""

    ONE_OF_MANY = False  # each example has one of the classes, of which there must be two
    NUMBERED = False  # an example has its class's number, so that data and model have one list

    @cached_property
    def labels(self) -> list[str]:
        """The classes' names in the order of the outputs: the checkpoint's, else the data's.

        Raises: LabError for data of one class, which a model would tell from nothing."""
        stored = json.loads((self.assets_given or {}).get(LABELS, b"[]"))
        if not stored and self.ONE_OF_MANY and len(self.data.labels) == 1:
            name = self.data.labels[0]
            raise LabError(f'all examples have the class "{name}": a classifier needs two or more')
        return stored or self.data.labels

    @abstractmethod
    def train_labels(self) -> Iterable[str]:
        """The name of the class of each training example."""

    @cached_property
    def class_weights(self) -> Float[np.ndarray, "classes"] | None:
        """The weight of each class in the training loss, or None if all are equal."""
        return class_weights(self.config.class_weights, self.labels, self.train_labels)

    def assets(self) -> dict[str, bytes]:
        return {**super().assets(), LABELS: json.dumps(self.labels).encode()}

    def kept_files(self) -> dict[str, bytes] | None:
        """Without the classes' names, where the data has others."""
        given = self.assets_given or {}
        known, wanted = json.loads(given.get(LABELS, b"[]")), self.data.labels
        fits = wanted == known if self.NUMBERED else {*wanted} <= {*known}
        if fits or not known:
            return self.assets_given
        return {name: content for name, content in given.items() if name != LABELS}

    def check_classes(self) -> None:
        """Raises: LabError if the data's list of classes is not the model's."""
        if self.data.labels != self.labels:
            raise LabError(
                f"the data has the classes {', '.join(self.data.labels)[:200]}, the checkpoint "
                f"{', '.join(self.labels)[:200]}: take data with the same ones, or train a new run "
                "on these with --init_from, which gets a head of its own"
            )

    def likeliest(self, chances: Float[np.ndarray, "classes"]) -> dict[str, Any]:
        """The likeliest class, its probability, and the probability of every class by name."""
        shares = {name: float(c) for name, c in zip(self.labels, chances, strict=True)}
        best = self.labels[int(chances.argmax())]
        return {"label": best, "probability": shares[best], "probabilities": shares}

    def confusion(self, gold: Indices, guess: Indices) -> dict[str, Any]:
        """The classes' names, and a row of counts for each true class, a column a predicted one."""
        counts = np.zeros((len(self.labels),) * 2, int)
        np.add.at(counts, (np.asarray(gold, int), np.asarray(guess, int)), 1)
        return {"labels": list(self.labels), "counts": counts.tolist()}


def class_weights(
    setting: str, labels: Sequence[str], train: Callable[[], Iterable[Any]]
) -> np.ndarray | None:
    """Each class's weight in the training loss, or None where all count alike.

    "balanced" is n / (classes * count) of the n training labels, as in scikit-learn; else
    "spam=4,ham=0.5" gives weights to some classes, and the others have 1. `train` gives the labels
    of the training set. Raises: LabError for any other setting.
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
        weights[known("task.class_weights: ", name, labels)] = value
    return np.asarray(list(weights.values()), np.float32)
