"""Detection: the objects of an image as a set of boxes with classes (Carion 2020)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from transformer_lab.data.batching import RowPlan
from transformer_lab.data.images import boxes as data
from transformer_lab.data.images.batches import ImageBatchConfig
from transformer_lab.data.images.normalise import Normalisation
from transformer_lab.data.images.reading import read_image
from transformer_lab.data.pipeline import Batches
from transformer_lab.errors import LabError, at_least, fractions, within
from transformer_lab.layers.told import tell_of_task
from transformer_lab.models.base import ObjectDetector
from transformer_lab.ops import boxes as ops
from transformer_lab.ops.losses import Pair, cross_entropy
from transformer_lab.tasks.average_precision import Detections, average_precision, library
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores
from transformer_lab.tasks.building import Shapes, shapes_of
from transformer_lab.tasks.labels import Labelled


@dataclass(frozen=True)
class DetectionConfig:
    """Settings of detection, the config section `task`; weights as in Carion 2020, A.4."""

    class_weight: float = 1.0  # in the matching alone: that of the class's probability
    box_weight: float = 5.0  # of the L1 distance of boxes, in the matching and the loss
    overlap_weight: float = 2.0  # of their generalised IoU
    none_weight: float = 0.1  # of queries without an object in the loss of classes
    auxiliary: bool = True  # whether all layers of a decoder are trained, or the last alone
    flip: float = 0.0  # probability of mirroring a training image left and right
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # of each channel, of pixels in 0..1
    std: tuple[float, ...] = (0.229, 0.224, 0.225)  # standard deviations by colour
    # Of two boxes of one class that overlap by more, the worse goes; 1: none goes. A set needs
    # no such rule.
    duplicate_overlap: float = 1.0

    def __post_init__(self):
        at_least(self, "task", 0, "class_weight", "box_weight", "overlap_weight")
        fractions(self, "task", "none_weight")
        within("task.flip", self.flip, 0, 1)
        within("task.duplicate_overlap", self.duplicate_overlap, 0, 1)
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise LabError(
                f"task.mean = {self.mean} and task.std = {self.std}: 3 numbers, deviations above 0"
            )


@dataclass(frozen=True)
class DetectionBatchConfig(ImageBatchConfig):
    """Settings of batches of images with boxes."""

    rows: int = 64  # over all devices and micro-batches
    objects: int = 4  # the most objects of an image; no more than the model's queries

    def __post_init__(self):
        super().__post_init__()
        at_least(self, "batch", 1, "objects")


SECTIONS = {"task": DetectionConfig, "data": data.BoxConfig, "batch": DetectionBatchConfig}


class Detection(Labelled):
    """Finds the objects of an image: a box, a class and a score for each.

    A batch holds `image` (uint8 [rows, side, side, 3], padded on the right and below), its real
    `size` (height and width), `boxes` [rows, objects, 4], `label` and `mask`; see
    `data.images.boxes.load`. Of 2 x 2 pixels the upper right one is an object of the first class:

        image  [[[[0, 0, 0], [200, 200, 200]], [[0, 0, 0], [0, 0, 0]]]]
        size   [[2, 2]]
        boxes  [[[0.75, 0.25, 0.5, 0.5], [0, 0, 0, 0]]]
        label  [[0, -1]]
        mask   [1]
    """

    NEEDS, COUNTED = ObjectDetector, "images"
    NUMBERED = True
    load_data = staticmethod(data.load_boxes)

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        self.batch: DetectionBatchConfig = self.sections["batch"]
        if model_config.grid is None and self.batch.objects > model_config.queries:
            raise LabError(
                f"batch.objects = {self.batch.objects} is more than model.queries = "
                f"{model_config.queries}, which find an object each"
            )

    def fit(self, model_config: Any) -> Any:
        """Adds an output for each class, and the side of the padded images."""
        side = self.sections["data"].longest
        return model_config.of_size((side, side), len(self.labels))

    def train_labels(self) -> Iterator[str]:
        return (self.labels[i] for row in self.examples("train") for i in row.labels)

    # What the trainer compiles.

    @cached_property
    def normalise(self) -> Normalisation:
        """The normalisation of pixels."""
        return Normalisation(self.config.mean, self.config.std)

    def apply(self, params: Params, batch: Batch, dropout_key=None) -> dict[str, Array]:
        """The model's outputs; what pads an image is 0 after the normalisation, as in theirs."""
        _, height, width, _ = batch["image"].shape
        real = (jnp.arange(height) < batch["size"][:, :1])[:, :, None]
        real &= (jnp.arange(width) < batch["size"][:, 1:])[:, None]
        images = self.normalise(batch["image"]) * real[..., None]
        return self.model.apply({"params": params}, images, dropout_key, batch["mask"], real)

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The `loss` of classes by the sum of their weights, `box_l1` and `box_giou` by the number
        of objects; all are sums over layers. What is minimised is loss + box_weight * box_l1 +
        overlap_weight * box_giou (Carion 2020, eq. 2 and A.2)."""
        out, cfg = self.apply(params, batch, dropout_key), self.config
        logits, found = out["layer_logits"], out["layer_boxes"]
        if not cfg.auxiliary:
            logits, found = logits[-1:], found[-1:]
        weights = cfg.class_weight, cfg.box_weight, cfg.overlap_weight
        real = (batch["label"] >= 0) & batch["mask"][:, None]
        one = partial(set_losses, weights=weights, none_weight=cfg.none_weight,
                      grid=self.model_config.grid)  # fmt: skip
        shares = batch["size"] / jnp.array(batch["image"].shape[1:3])
        every_image = jax.vmap(one, in_axes=(0, 0, 0, 0, 0, 0))
        every_layer = jax.vmap(every_image, in_axes=(0, 0, None, None, None, None))
        sums = every_layer(logits, found, batch["label"], batch["boxes"], real, shares)
        nats, nats_weight, distance, overlap, count = (
            (x * batch["mask"]).sum(axis=1) for x in sums
        )
        boxes = {"box_l1": (distance, cfg.box_weight), "box_giou": (overlap, cfg.overlap_weight)}
        pairs = {"loss": (nats.sum(), nats_weight[0])}
        for name, (total, coefficient) in boxes.items():
            pairs[name] = (total.sum(), count[0])
            if training:
                tell_of_task(name, *pairs[name], coefficient)
        return pairs

    # Data.

    @cached_property
    def train_plan(self) -> RowPlan:
        """The order of the images."""
        count = len(self.examples("train"))
        return RowPlan("boxes", np.ones(count, np.int64), 1, self.batch.rows, self.seed)

    def examples(self, split: str) -> Any:
        """The images of a split. Raises: LabError if their classes are not the model's."""
        self.check_classes()
        return super().examples(split)

    def train_batches(self) -> Batches:
        library()  # which a run asks for when it evaluates: before it starts is better
        load = partial(data.load, images=self.examples("train"), config=self.sections["data"],
                       most=self.batch.objects, flip=self.config.flip)  # fmt: skip
        return Batches(self.train_plan, load, workers=self.batch.workers)

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        return (batch for _, batch in self._in_order(split))

    def _in_order(self, split: str) -> Iterator[tuple[list[data.Boxed], HostBatch]]:
        settings = self.sections["data"], self.batch.rows, self.batch.objects
        return data.in_order(self.examples(split), *settings)

    def abstract_batch(self) -> Shapes:
        rows, side, most = self.batch.rows, self.sections["data"].longest, self.batch.objects
        return {
            **shapes_of((rows, side, side, 3), image=np.uint8),
            **shapes_of((rows, 2), size=np.int32),
            **shapes_of((rows, most, 4), boxes=np.float32),
            **shapes_of((rows, most), label=np.int32),
            **shapes_of((rows,), mask=bool),
        }

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        return {"examples": int(batch["mask"].sum())}

    # Scores and detections.

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """COCO's average precisions, in pixels of the images as they are in their files."""
        truth, found = [], []
        for rows, batch in self._in_order(split):
            out = map(np.asarray, self._found(params, place(batch)))
            for row, chances, boxes in zip(rows, *out, strict=False):  # padding rows come last
                found.append(self._best(chances, boxes, row.image.shape[:2]))
            truth += rows
        if not truth:
            return Scores()
        values = average_precision(truth, found, len(self.labels))
        return Scores({**values, "num_examples": float(len(truth))})

    @cached_property
    def _found(self) -> Any:
        """Probabilities of the classes without none [b q labels], and boxes [b q 4] as shares."""

        def find(params, batch):
            out = self.apply(params, batch)
            return jax.nn.softmax(out["logits"], axis=-1)[..., :-1], ops.corners(out["boxes"])

        return jax.jit(find)

    def _best(
        self, chances: Float[np.ndarray, "q c"], boxes: Float[np.ndarray, "q 4"], size: tuple
    ) -> Detections:
        """The likeliest class of each query and its box in pixels, best first."""
        pixels = boxes.clip(0, 1) * np.array([size[1], size[0]] * 2)
        scores, labels = chances.max(axis=-1), chances.argmax(axis=-1)
        order = np.argsort(-scores, kind="stable")
        if self.config.duplicate_overlap < 1:
            order = ops.without_duplicates(pixels, scores, labels, self.config.duplicate_overlap)
        return Detections(pixels[order], scores[order], labels[order])

    def detect(
        self, params: Params, path: str, place: Place
    ) -> tuple[UInt8[np.ndarray, "h w 3"], Detections]:
        """An image file, and what is found in it. The image is scaled as in training, but padded
        for models of a grid alone: what pads the others changes a net's last rows a little."""
        image, settings = read_image(path), self.sections["data"]
        small = data.scaled(image, settings.shortest, settings.longest)
        sides = small.shape[:2] if self.model_config.grid is None else (settings.longest,) * 2
        rows = self.rows_multiple
        canvas = np.zeros((rows, *sides, 3), np.uint8)
        canvas[:, : small.shape[0], : small.shape[1]] = small
        size = np.tile(np.array(small.shape[:2], np.int32), (rows, 1))
        batch = place({"image": canvas, "size": size, "mask": np.ones(rows, bool)})
        chances, boxes = (np.asarray(x)[0] for x in self._found(params, batch))
        return image, self._best(chances, boxes, image.shape[:2])

    def read(self, path: str) -> UInt8[np.ndarray, "h w 3"]:
        """An image file, scaled as in training and not yet normalised."""
        settings = self.sections["data"]
        return data.scaled(read_image(path), settings.shortest, settings.longest)

    def details(self) -> list[str]:
        side = self.sections["data"].longest
        return [
            f"{side} x {side} pixels, {len(self.labels)} classes: {', '.join(self.labels)[:200]}",
            f"batches: {self.steps_per_epoch():,} an epoch, one shape: {self.batch.rows} rows",
        ]


def set_losses(
    logits: Float[Array, "q c"],
    found: Float[Array, "q 4"],
    label: Array,
    wanted: Float[Array, "n 4"],
    real: Array,
    share: Float[Array, "2"],
    weights: tuple[float, float, float],
    none_weight: float,
    grid: tuple[int, int] | None,
) -> tuple[Float[Array, ""], ...]:
    """Of one image and layer: the weighted nats of classes and the sum of their weights, the L1
    distances of boxes, 1 - generalised IoU, and the number of objects.

    Queries are matched to objects by the least cost, or by the cell in which an object's centre is
    (`share`: the real part of the padded image's height and width); of several in a cell the first
    one counts."""
    none = logits.shape[-1] - 1
    if grid is None:
        cost = ops.matching_cost(logits, found, label, wanted, weights)
        query = ops.hungarian(jax.lax.stop_gradient(cost), real)
    else:
        whole = wanted * jnp.concatenate([share[::-1]] * 2)
        query = ops.cell_of(whole, grid)
        earlier = (query[:, None] == query) & real & jnp.tri(len(query), k=-1, dtype=bool)
        real = real & ~earlier.any(axis=1)
    own = jnp.where(real, query, len(logits))  # a place outside for what is no object
    target = jnp.full(len(logits), none).at[own].set(label, mode="drop")
    class_weights = jnp.where(target == none, none_weight, 1.0)
    nats = class_weights * cross_entropy(logits, target)
    matched = found[query]
    distance = jnp.abs(matched - wanted).sum(axis=-1)
    _, generalised = ops.overlaps(ops.corners(matched), ops.corners(wanted))
    of_real = lambda x: jnp.where(real, x, 0.0).sum()  # noqa: E731
    return (
        nats.sum(), class_weights.sum(), of_real(distance), of_real(1 - generalised),
        real.sum(dtype=jnp.float32),
    )  # fmt: skip


build = Detection
