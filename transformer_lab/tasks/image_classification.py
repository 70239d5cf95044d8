"""Classes of images (Dosovitskiy 2021, section 4) or clips (Arnab 2021), with soft labels where
images are mixed."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, Num, UInt8

from transformer_lab.data.batching import RowPlan
from transformer_lab.data.images import batches, normalise, sources
from transformer_lab.data.images.augment import AugmentConfig
from transformer_lab.data.images.reading import read_image
from transformer_lab.data.images.video import read_clip
from transformer_lab.data.splits import SPLITS, source_of
from transformer_lab.errors import LabError, fractions
from transformer_lab.models.base import Clips, ImageEncoder, Patches
from transformer_lab.ops.heads import mean_distance, patch_places
from transformer_lab.ops.losses import (
    Pair,
    cross_entropy,
    masked_sum,
    ratio,
    weights_of,
)
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores
from transformer_lab.tasks.building import Shapes, parts_of, shapes_of
from transformer_lab.tasks.labels import LABELS as LABELS  # for callers that build a checkpoint
from transformer_lab.tasks.labels import Labelled
from transformer_lab.terminal import waited

FORM = "images.json"  # size, channels and normalisation of the model's images

NO_CLASSES = (
    'a model with model.head = "none" has no classes to learn or to predict: embed gives its '
    "vectors, and train --init_from=RUN --config.model_from_init=True adds classes"
)


@dataclass(frozen=True)
class ImageClassificationConfig:
    """Settings of image classification, the config section `task`."""

    label_smoothing: float = 0.0  # share of the target's probability that all classes share
    class_weights: str = ""  # in the training loss: "balanced", or "label=2.5,label=0.5"
    mean: tuple[float, ...] = ()  # of each channel, of pixels in 0..1; (): the training set's
    std: tuple[float, ...] = ()  # standard deviations by colour, which go with mean

    def __post_init__(self):
        fractions(self, "task", "label_smoothing")
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


class ImageClassification(Labelled):
    """Predicts the class of an image; a model without classes gives the features of one alone.

    A batch holds `image` (uint8 [rows, height, width, channels]), `label` (int32 [rows], or float32
    [rows, classes], the share of each class, where images are mixed) and `mask` (False at a row
    that only fills the batch). With config.data.frames an image is a clip [frames, height, width,
    channels]. Two grey images of 2 x 2 pixels:

        image  [[[[0], [80]], [[160], [0]]], [[[0], [80]], [[160], [240]]]]
        label  [0, 1]
        mask   [1, 1]
    """

    NEEDS, COUNTED = ImageEncoder, "images"
    ONE_OF_MANY, NUMBERED = True, True

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        self.headless = model_config.head == "none"
        self.batch: batches.ImageBatchConfig = self.sections["batch"]
        self._form = json.loads((self.assets_given or {}).get(FORM, b"{}"))
        data, image_size = self.sections["data"], model_config.image_size
        size = data.size or tuple(self._form.get("size", ()))
        if not size and getattr(source_of(data), "MANY_SIZES", False):
            size = image_size
        self.data_config = replace(
            data,
            size=size,
            channels=data.channels or self._form.get("channels", 0),
            frames=data.frames or self._form.get("frames", 0),
        )
        if isinstance(model_config, Clips) != bool(self.frames):
            raise LabError(
                f'config.data.frames = {self.frames} does not go with model.kind = "{model_kind}": '
                'clips, of 1 frame or more, go with "video", images (0) with the others'
            )

    def fit(self, model_config: Any) -> Any:
        """Adds an output for each class, and the size and channels of the data's images."""
        form = {"image_size": self.size, "channels": self.channels, **self._clips}
        if self.headless:
            return replace(model_config, head="none", **form)
        return replace(model_config, head="classes", classes=len(self.labels), **form)

    @cached_property
    def labels(self) -> list[str]:
        """The classes' names; none for a model without classes."""
        return [] if self.headless else Labelled.labels.func(self)

    # The form of the images.

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images that the model reads, in pixels."""
        return self.data_config.size or tuple(self.data.train.size)

    @property
    def channels(self) -> int:
        return self.data_config.channels or self.data.train.channels

    @property
    def frames(self) -> int:
        """Frames of each clip; 0 where the data has images."""
        return self.data_config.frames

    @property
    def _clips(self) -> dict[str, int]:
        return {"frames": self.frames} if self.frames else {}

    @cached_property
    def normalise(self) -> normalise.Normalisation:
        """The normalisation of the config, else of the checkpoint, else of the training set."""
        mean, std = self.config.mean, self.config.std
        if not mean and self._form:
            mean, std = self._form["mean"], self._form["std"]
        if not mean:
            return normalise.moments(self.data.train)
        if len(mean) != self.channels:
            raise LabError(f"task.mean = {mean}, but images have {self.channels} channel(s)")
        return normalise.Normalisation(tuple(mean), tuple(std))

    def read(self, path: str) -> UInt8[np.ndarray, "*frames h w c"]:
        """Reads a file of an image or clip in the model's size and channels, not yet normalised."""
        if self.frames:
            return read_clip(path, self.frames, self.channels, self.size)
        return read_image(path, self.channels, self.size, self.data_config.background)

    def read_images(self, paths: Sequence[str]) -> UInt8[np.ndarray, "n *frames h w c"]:
        """Reads several image files."""
        return np.stack([self.read(path) for path in paths])

    def train_labels(self) -> Iterator[str]:
        return (self.labels[i] for i in self.examples("train").labels)

    # What the trainer compiles.

    def apply(self, params: Params, batch: Batch, dropout_key: Key[Array, ""] | None = None) -> Any:
        """The model's outputs; images are normalised on the device, where they come as bytes."""
        images = self.normalise(batch["image"])
        return self.model.apply({"params": params}, images, dropout_key, batch["mask"])

    def loss(self, params: Params, batch: Batch, dropout_key: Key[Array, ""]) -> dict[str, Pair]:
        """The training loss; with two heads (DeiT) the mean of both losses. An image mixed of two
        classes is weighted by the same mixture of the classes' weights."""
        out = self.apply(params, batch, dropout_key)
        heads = [out[name] for name in ("logits", "distilled") if name in out]
        smoothing = self.config.label_smoothing
        losses = [soft_cross_entropy(head, batch["label"], smoothing) for head in heads]
        weights = weights_of(batch["label"], self.class_weights)
        return {"loss": masked_sum(sum(losses) / len(losses), batch["mask"], weights)}

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        """Loss, accuracy and, with more than five classes, the accuracy of the likeliest five."""
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

    def examples(self, split: str) -> sources.Images:
        """The images of a split. Raises: LabError if their classes are not the model's."""
        if self.headless:
            raise LabError(NO_CLASSES)
        self.check_classes()
        return super().examples(split)

    @cached_property
    def train_plan(self) -> RowPlan:
        return batches.train_plan(self.examples("train"), self.batch.rows, self.seed)

    def train_batches(self) -> batches.Batches:
        how = self.sections["augment"], len(self.labels), self.batch.workers
        return batches.train_batches(self.train_plan, self.data.train, *how)

    def abstract_batch(self) -> Shapes:
        rows = self.batch.rows
        label = shapes_of((rows,), label=np.int32)
        if self.sections["augment"].mixes:
            label = shapes_of((rows, len(self.labels)), label=np.float32)
        frames = self._clips.values()
        image = shapes_of((rows, *frames, *self.size, self.channels), image=np.uint8)
        return {**image, **label, **shapes_of((rows,), mask=bool)}

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        return batches.in_order(self.examples(split), self.batch.rows)

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        return {"examples": int(batch["mask"].sum())}

    # Scores and predictions.

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """Adds, for a trained transformer, each layer's attention distance in patches: the mean
        over heads and a split's first batch (Dosovitskiy 2021, figure 7, right)."""
        values = {"num_examples": float(len(self.examples(split)))}
        if not values["num_examples"]:
            return Scores()
        if final and isinstance(self.model_config, Patches) and not self.frames:
            batch = next(self.eval_batches(split))
            for i, sums in enumerate(self._distances(params, place(batch))):
                values[f"attention_distance_{i}"] = float(ratio(sums))
        return Scores(values, confusion=self._counts(params, split, place) if final else {})

    def _counts(self, params: Params, split: str, place: Place) -> dict[str, Any]:
        """The confusion of a split's classes (see `Scores`)."""
        gold, guess = [], []
        for batch in waited(f"counts classes of {split}", self.eval_batches(split)):
            logits = self._outputs(params, place(batch))["logits"]
            gold.append(batch["label"][batch["mask"]])
            guess.append(np.asarray(logits).argmax(axis=1)[batch["mask"]])
        return self.confusion(np.concatenate(gold), np.concatenate(guess))

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
    def _outputs(self) -> Callable[[Params, Batch], dict[str, Array]]:
        kept = "features", "logits"

        def outputs(params, batch):
            return {k: v for k, v in self.apply(params, batch).items() if k in kept}

        return jax.jit(outputs)

    def _output(self, name: str, params: Params, images: np.ndarray, place: Place) -> np.ndarray:
        """One of the model's outputs for each image: "features" or "logits"."""
        found = []
        for image, count in parts_of(images, self.batch.rows):
            batch = place({"image": image, "mask": np.arange(len(image)) < count})
            found.append(np.asarray(self._outputs(params, batch)[name])[:count])
        return np.concatenate(found)

    def image_vectors(
        self, params: Params, images: UInt8[np.ndarray, "n *frames h w c"], place: Place
    ) -> Float[np.ndarray, "n d"]:
        """The features of each image, which a classifier reads."""
        return self._output("features", params, images, place)

    def predict(self, params: Params, paths: Sequence[str], place: Place) -> list[dict]:
        """The likeliest class of each image file, and the probabilities of all classes."""
        if not self.labels:
            raise LabError(NO_CLASSES)
        logits = self._output("logits", params, self.read_images(paths), place)
        rows = zip(paths, np.asarray(jax.nn.softmax(logits)), strict=True)
        return [{"image": path, **self.likeliest(row)} for path, row in rows]

    # What the run reports and keeps.

    def assets(self) -> dict[str, bytes]:
        form = {"size": self.size, "channels": self.channels, **self.normalise._asdict()}
        form |= self._clips
        return {FORM: json.dumps(form).encode(), **super().assets()}

    def classes(self) -> dict[str, set[str]]:
        parts = {split: getattr(self.data, split) for split in SPLITS}
        return {split: {self.labels[i] for i in part.classes()} for split, part in parts.items()}

    def details(self) -> list[str]:
        mean, std = ([round(x, 4) for x in values] for values in self.normalise)
        return [
            " x ".join(map(str, (*self._clips.values(), *self.size, self.channels)))
            + f", mean {mean}, deviation {std}; "
            f"{len(self.labels)} classes",
            f"batches: {self.steps_per_epoch():,} an epoch, one shape: {self.batch.rows} rows",
        ]


def soft_cross_entropy(
    logits: Float[Array, "rows classes"], label: Num[Array, "rows *classes"], smoothing: float
) -> Float[Array, "rows"]:
    """Nats against each row's class index or distribution; smoothing mixes in the uniform one."""
    if label.ndim == 1:
        return cross_entropy(logits, label, smoothing)
    logits = logits.astype(jnp.float32)
    target = (1 - smoothing) * (label * logits).sum(axis=-1) + smoothing * logits.mean(axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - target


build = ImageClassification
SHOWN = ("accuracy",)
BASELINE = "images"
