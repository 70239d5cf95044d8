"""Classes of images, with soft labels where images are mixed (Dosovitskiy 2021, section 4)."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, Num, UInt8

from transformer_lab import models
from transformer_lab.data.images import batches, normalise, sources
from transformer_lab.data.images.augment import AugmentConfig
from transformer_lab.data.images.reading import read_image
from transformer_lab.data.splits import SPLITS, remarks
from transformer_lab.errors import LabError
from transformer_lab.ops.heads import mean_distance, patch_places
from transformer_lab.ops.losses import (
    Pair,
    cross_entropy,
    masked_sum,
    ratio,
    weights_of,
)
from transformer_lab.tasks.base import (
    Batch,
    HostBatch,
    Params,
    Place,
    Scores,
    class_weights,
    shapes_of,
)
from transformer_lab.tasks.reading import LABELS

FORM = "images.json"  # how the model takes its images
FAMILIES = ("vision", "cnn")


@dataclass(frozen=True)
class ImageClassificationConfig:
    """The objective's own settings."""

    label_smoothing: float = 0.0
    class_weights: str = ""  # of the training loss: "balanced", or "label=2.5,label=0.5"
    mean: tuple[float, ...] = ()  # of each channel, of pixels in 0..1; (): the training set's
    std: tuple[float, ...] = ()

    def __post_init__(self):
        if not 0 <= self.label_smoothing < 1:
            raise LabError(f"task.label_smoothing = {self.label_smoothing} is not in [0, 1)")
        if len(self.mean) != len(self.std) or min(self.std, default=1) <= 0:
            raise LabError(
                f"task.mean = {self.mean} and task.std = {self.std}: a number for each channel, "
                "and deviations above 0"
            )


SECTIONS = {
    "task": ImageClassificationConfig,
    "data": sources.ImageConfig,
    "batch": batches.ImageBatchConfig,
    "augment": AugmentConfig,
}


class ImageClassification:
    """The task; what a batch holds stands at `data.images.batches.load`."""

    CONFIG_LABELS = True

    def __init__(
        self,
        model_kind: str,
        model_config: Any,
        sections: dict[str, Any],
        assets: dict[str, bytes] | None = None,
        seed: int = 0,
        rows_multiple: int = 1,
    ):
        if model_kind not in FAMILIES:
            valid = " or ".join(f'"{kind}"' for kind in FAMILIES)
            raise LabError(f'model.kind = "{model_kind}" does not go with this task: use {valid}')
        self.config, self.sections, self.seed = sections["task"], sections, seed
        self.batch: batches.ImageBatchConfig = sections["batch"]
        self.batch.check(rows_multiple)
        stored = {name: json.loads((assets or {}).get(name, b"{}")) for name in (FORM, LABELS)}
        self._form, data = stored[FORM], sections["data"]
        self.data_config = replace(
            data,
            size=data.size or tuple(self._form.get("size", ())),
            channels=data.channels or self._form.get("channels", 0),
        )
        self.labels: list[str] = stored[LABELS] or self.data.labels
        self.model_config = replace(
            model_config,
            head="classes",
            classes=len(self.labels),
            image_size=self.size,
            channels=self.channels,
        )
        self.family = models.family(model_kind)
        self.model = self.family.build(self.model_config)

    # The form of the images.

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.data_config.size or tuple(self.data.train.size)

    @property
    def channels(self) -> int:
        return self.data_config.channels or self.data.train.channels

    @cached_property
    def normalise(self) -> normalise.Normalisation:
        """The config's, else the checkpoint's, else that of the training set."""
        mean, std = self.config.mean, self.config.std
        if not mean and self._form:
            mean, std = self._form["mean"], self._form["std"]
        if not mean:
            return normalise.moments(self.data.train)
        if len(mean) != self.channels:
            raise LabError(f"task.mean = {mean}, but images have {self.channels} channel(s)")
        return normalise.Normalisation(tuple(mean), tuple(std))

    def read(self, path: str) -> UInt8[np.ndarray, "h w c"]:
        """An image file as the model takes it, before the normalisation."""
        return read_image(path, self.channels, self.size, self.data_config.background)

    @cached_property
    def class_weights(self) -> np.ndarray | None:
        train = lambda: (self.labels[i] for i in self.split("train").labels)  # noqa: E731
        return class_weights(self.config.class_weights, self.labels, train)

    # What the trainer compiles.

    def init(self, key: Key[Array, ""]) -> Params:
        return self.model.init(key, *self.family.example_inputs())["params"]

    def apply(self, params: Params, batch: Batch, dropout_key: Key[Array, ""] | None = None) -> Any:
        """The model's outputs; images are normalised on the device, where they come as bytes."""
        images = self.normalise(batch["image"])
        return self.model.apply({"params": params}, images, dropout_key, batch["mask"])

    def loss(self, params: Params, batch: Batch, dropout_key: Key[Array, ""]) -> dict[str, Pair]:
        """With two heads (DeiT) the mean of both losses. An image mixed of two classes counts as
        much as the classes' weights in the same shares."""
        out = self.apply(params, batch, dropout_key)
        heads = [out[name] for name in ("logits", "distilled") if name in out]
        smoothing = self.config.label_smoothing
        losses = [soft_cross_entropy(head, batch["label"], smoothing) for head in heads]
        weights = weights_of(batch["label"], self.class_weights)
        return {"loss": masked_sum(sum(losses) / len(losses), batch["mask"], weights)}

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        """Also the share of labels among the five likeliest classes, where there are more."""
        logits, label = self.apply(params, batch)["logits"], batch["label"]
        found = {"loss": cross_entropy(logits, label)}
        for name, count in (("accuracy", 1), ("top_5", 5)):
            if count == 1 or len(self.labels) > 5:
                best = jax.lax.top_k(logits, count)[1]
                found[name] = (best == label[:, None]).any(axis=1).astype(jnp.float32)
        return {name: masked_sum(values, batch["mask"]) for name, values in found.items()}

    # Data.

    @cached_property
    def data(self) -> sources.ImageSplits:
        return sources.load_images(self.data_config)

    def split(self, name: str) -> sources.Images:
        """A split; LabError if its classes are not the model's."""
        if self.data.labels != self.labels:
            raise LabError(
                f"the data has the classes {', '.join(self.data.labels)[:200]}, the checkpoint "
                f"{', '.join(self.labels)[:200]}: train on data with the same ones"
            )
        return getattr(self.data, name)

    @cached_property
    def _plan(self) -> Any:
        return batches.train_plan(self.split("train"), self.batch.rows, self.seed)

    def steps_per_epoch(self) -> int:
        return self._plan.batches_per_epoch

    def train_batches(self) -> batches.Batches:
        augment, count = self.sections["augment"], len(self.labels)
        return batches.train_batches(
            self._plan, self.data.train, augment, count, self.batch.workers
        )

    def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        rows = self.batch.rows
        mixed = self.sections["augment"].mixes
        label = shapes_of((rows, len(self.labels)) if mixed else (rows,),
                          label=np.float32 if mixed else np.int32)  # fmt: skip
        image = shapes_of((rows, *self.size, self.channels), image=np.uint8)
        return {**image, **label, **shapes_of((rows,), mask=bool)}

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        return batches.in_order(self.split(split), self.batch.rows)

    def fingerprint(self) -> str:
        return self.data.content

    # Scores and predictions.

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """Of a finished transformer also each layer's attention distance, on a split's first batch,
        in patches, the mean over heads and images (Dosovitskiy 2021, figure 7, right)."""
        values = {"num_examples": float(len(self.split(split)))}
        if not values["num_examples"]:
            return Scores({}, [], {})
        if final and hasattr(self.model_config, "grid"):
            batch = next(self.eval_batches(split))
            for i, sums in enumerate(self._distances(params, place(batch))):
                values[f"attention_distance_{i}"] = float(ratio(sums))
        return Scores(values, [], {})

    @cached_property
    def _distances(self) -> Callable[[Params, Batch], list[Pair]]:
        places = patch_places(self.model_config.grid)

        def measure(params, batch):
            images = self.normalise(batch["image"])
            _, left = self.model.apply({"params": params}, images, mutable=["intermediates"])
            stack = left["intermediates"]["encoder"]
            weights = [
                stack[f"layer_{i}"]["attention"]["weights"][0][..., -len(places) :, -len(places) :]
                for i in range(self.model_config.layers)
            ]
            means = [mean_distance(w, places).mean(axis=1) for w in weights]  # over heads
            return [masked_sum(x, batch["mask"]) for x in means]

        return jax.jit(measure)

    @cached_property
    def _logits(self) -> Callable[[Params, Batch], Array]:
        return jax.jit(lambda params, batch: self.apply(params, batch)["logits"])

    def predict(self, params: Params, paths: Sequence[str], place: Place) -> list[dict]:
        """The class of each image file, its probability, and those of all classes."""
        found = []
        for first in range(0, len(paths), self.batch.rows):
            some = paths[first : first + self.batch.rows]
            image = np.zeros((self.batch.rows, *self.size, self.channels), np.uint8)
            image[: len(some)] = [self.read(path) for path in some]
            batch = place({"image": image, "mask": np.arange(len(image)) < len(some)})
            chances = np.asarray(jax.nn.softmax(self._logits(params, batch)))
            for path, row in zip(some, chances, strict=False):
                shares = {name: float(c) for name, c in zip(self.labels, row, strict=True)}
                best = self.labels[int(row.argmax())]
                found.append(
                    {"image": path, "label": best, "probability": shares[best],
                     "probabilities": shares}
                )  # fmt: skip
        return found

    # What the run reports and keeps.

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        return {"examples": int(batch["mask"].sum())}

    def assets(self) -> dict[str, bytes]:
        form = {"size": self.size, "channels": self.channels, **self.normalise._asdict()}
        return {FORM: json.dumps(form).encode(), LABELS: json.dumps(self.labels).encode()}

    def report(self) -> list[str]:
        counts = ", ".join(f"{name} {count:,}" for name, count in self.data.report.items())
        classes = {s: {self.labels[i] for i in getattr(self.data, s).classes()} for s in SPLITS}
        mean, std = ([round(x, 4) for x in values] for values in self.normalise)
        return [
            f"images: {counts}; licence: {self.data.licence}",
            *remarks(self.data.report, self.data_config, classes),
            f"{self.size[0]} x {self.size[1]} x {self.channels}, mean {mean}, deviation {std}; "
            f"{len(self.labels)} classes",
            f"batches: {self.steps_per_epoch():,} an epoch, one shape: {self.batch.rows} rows",
        ]


def soft_cross_entropy(
    logits: Float[Array, "rows classes"], label: Num[Array, "rows *classes"], smoothing: float
) -> Float[Array, "rows"]:
    """Against a class a row, or shares of classes, which smoothing draws to the uniform ones."""
    if label.ndim == 1:
        return cross_entropy(logits, label, smoothing)
    logits = logits.astype(jnp.float32)
    target = (1 - smoothing) * (label * logits).sum(axis=-1) + smoothing * logits.mean(axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - target


build = ImageClassification
