"""Contrastive training on images and captions: CLIP (Radford 2021), SigLIP (Zhai 2023), and LiT
with a frozen image tower (Zhai 2022)."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer_lab import text
from transformer_lab.data import emoji
from transformer_lab.data.batching import RowPlan, RowsConfig
from transformer_lab.data.drawings import draw_plan, plain, varied
from transformer_lab.data.images.normalise import check_bytes
from transformer_lab.data.ragged import fill
from transformer_lab.errors import LabError, known
from transformer_lab.models.base import TwoTowers
from transformer_lab.ops.contrastive import chunked_softmax_loss, sigmoid_loss, softmax_loss
from transformer_lab.ops.losses import Pair, masked_sum
from transformer_lab.tasks.base import Batch, HostBatch, Joint, Params
from transformer_lab.tasks.building import Shapes, shapes_of
from transformer_lab.tasks.encoder_task import ragged
from transformer_lab.tasks.image_classification import FORM
from transformer_lab.tasks.naming import Naming

LOSSES = ("softmax", "chunked_softmax", "sigmoid")
TOWER_FORM = f"image.{FORM}"  # an asset of the run that the image tower is from


@dataclass(frozen=True)
class ContrastiveConfig:
    """Settings of contrastive training, the config section `task`."""

    loss: str = "softmax"  # chunked_softmax: the same, in blocks that travel round the devices
    # Of each channel in 0..1; (): those of the run that the image tower is from, else 0.5
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()  # standard deviations by colour, which go with mean
    strength: float = 1.0  # of the random changes to training images; 0: none
    samples: int = 8  # images shown at the end with the names that the model gives them

    def __post_init__(self):
        known("task.loss = ", self.loss, LOSSES)
        if min(self.std, default=1) <= 0 or self.strength < 0:
            raise LabError("task.std must be more than 0, task.strength not negative")


SECTIONS = {
    "task": ContrastiveConfig,
    "data": emoji.EmojiConfig,
    "batch": RowsConfig,
    "tokenizer": text.TokenizerConfig,
}


class Contrastive(Naming):
    """Trains vectors of images and captions to be near for those that belong together.

    A batch holds `image` (uint8 [rows, h, w, c]), `tokens` (int32 [rows, length]) and
    `tokens_mask`: row i of the one belongs to row i of the other. Micro-batches are compared with
    each other as one batch. Drawings of "red bar" and "blue box" as one pixel each:

        image        [[[[249, 215, 215]]], [[[175, 183, 242]]]]
        tokens       [[2, 13, 15, 1, 0, 0], [2, 25, 17, 1, 0, 0]]
        tokens_mask  [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0]]
    """

    NEEDS, COUNTED, load_data = TwoTowers, "concepts", emoji.load_emoji
    PAIRS: tuple[tuple[str, str], ...] = (("image", "text"),)  # whose vectors are compared

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        self.rows = self.sections["batch"].rows
        given = self.assets_given or {}
        self._form = {name: x for name, x in given.items() if name == TOWER_FORM}
        own = {name: x for name, x in given.items() if not name.startswith("image.")}
        self.assets_given = own or None  # without the image tower's assets
        if (self.config.loss == "sigmoid") != (model_config.bias is not None):
            raise LabError('task.loss = "sigmoid" needs model.bias (-10), and others have none')

    def fit(self, model_config: Any) -> Any:
        """Adds the vocabulary's size, and the image size of the image tower's own run."""
        form = json.loads(self._form.get(TOWER_FORM, b"{}"))
        if form:
            part = "image" if model_config.image_kind == "vision" else "cnn"
            size, channels = tuple(form["size"]), form["channels"]
            tower = replace(model_config.tower, image_size=size, channels=channels)
            model_config = replace(model_config, **{part: tower})
        channels = model_config.tower.channels
        if not (self.config.mean or self.config.std):
            form = {"mean": (0.5,) * channels, "std": (0.5,) * channels} | form
            self.config = replace(self.config, **{k: tuple(form[k]) for k in ("mean", "std")})
        if len({channels, len(self.config.mean), len(self.config.std)}) > 1:
            raise LabError("task.mean and task.std need a number for each of the image's channels")
        tower = super().fit(model_config.text)
        # "last" pools at the table's last position, so texts are padded to that length.
        self.length = tower.max_length
        if model_config.text_pool != "last":
            self.length = min(self.sections["batch"].length, tower.max_length)
        self.size = model_config.tower.image_size
        return replace(model_config, text=tower, eos_id=self.tokenizer.eos_id)

    @cached_property
    def loss(self) -> Joint:
        """The loss of a whole batch, however many micro-batches it is computed in."""
        return Joint(self._embed, self._compare)

    # Data.

    def train_texts(self) -> Iterator[str]:
        for concept in self.data.train:
            yield from emoji.descriptions(concept)
            yield from (name for one in concept.drawings for name in one.names.values())
        for category in self.data.categories:
            yield from emoji.prompts(category)

    def encode_texts(self, texts: Sequence[str]) -> HostBatch:
        """Token ids of each text between its start and end tokens, padded with a mask. A long text
        is cut before the end token."""
        tok, room = self.tokenizer, self.length - 2
        rows = [[tok.bos_id, *ids[:room], tok.eos_id] for ids in tok.encode_batch(texts)]
        return fill(ragged(rows), np.arange(len(rows)), (self.length,), tok.pad_id)

    def _filled(
        self, images: np.ndarray, texts: Sequence[str], rows: np.ndarray, **more: np.ndarray
    ) -> HostBatch:
        """A batch with images and texts in the rows that `rows` marks, and zeros in the others."""
        found = {"image": images, **self.encode_texts(texts), **more}
        batch = {name: np.zeros((len(rows), *x.shape[1:]), x.dtype) for name, x in found.items()}
        for name, values in found.items():
            batch[name][rows] = values
        return batch

    def load_train(self, ids: np.ndarray, _: Any) -> HostBatch:
        """A training batch; each row's drawing and caption follow from its random seed in `ids`."""
        real, rng, data = ids[:, 0] >= 0, np.random.default_rng(ids[:, 1]), self.data
        concepts = [data.train[i] for i in ids[real, 0]]
        drawings = [
            one.drawings[rng.integers(len(one.drawings)) if rng.random() < 0.5 else 0]
            for one in concepts
        ]
        captions = [emoji.caption(*pair, rng) for pair in zip(concepts, drawings, strict=True)]
        pictures = data.pictures[[drawing.row for drawing in drawings]]
        mirrored = np.array([one.mirrored for one in concepts])
        strength = self.config.strength
        images = varied(pictures, self.size, mirrored, rng, strength)
        return self._filled(images if strength else plain(pictures, self.size), captions, real)

    @cached_property
    def train_plan(self) -> RowPlan:
        return draw_plan(len(self.data.train), self.rows, self.seed)

    def abstract_batch(self) -> Shapes:
        image = self.rows, *self.size, self.model_config.tower.channels
        tokens = shapes_of((self.rows, self.length), tokens=np.int32, tokens_mask=bool)
        return {**shapes_of(image, image=np.uint8), **tokens}

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        """Each concept once: its first drawing, unchanged, with its name as caption."""
        concepts = self.examples(split)
        for first in range(0, len(concepts), self.rows):
            some = concepts[first : first + self.rows]
            images = plain(self.data.pictures[[c.drawings[0].row for c in some]], self.size)
            real = np.arange(self.rows) < len(some)
            yield self._filled(images, [c.name for c in some], real)

    # Model.

    def apply(self, params: Params, *inputs: Any, method: str | None = None) -> Any:
        return self.model.apply({"params": params}, *inputs, method=method)

    def pixels(self, image: Array) -> Array:
        check_bytes(image)
        mean, std = jnp.array(self.config.mean), jnp.array(self.config.std)
        return (image.astype(jnp.float32) / 255 - mean) / std

    def _embed(self, params: Params, batch: Batch, dropout_key: Any = None) -> dict[str, Array]:
        inputs = self.pixels(batch["image"]), batch["tokens"], dropout_key
        more = [batch["sound"]] if "sound" in batch else []
        out = self.apply(params, *inputs, None, batch["tokens_mask"][:, 0], *more)
        return {name: out[name] for name in dict.fromkeys(sum(self.PAIRS, ()))}

    def _compare(self, params: Params, vectors: dict, batch: Batch) -> dict[str, Pair]:
        heat, real = self.apply(params, method="temperature"), batch["tokens_mask"][:, 0]
        blocks = self.config.loss == "chunked_softmax"
        pair = self._pair(vectors, heat, real, chunked_softmax_loss if blocks else softmax_loss)
        return {"loss": pair, "scale": (heat["scale"], jnp.ones(()))}

    def _pair(self, vectors, heat, real, softmax):
        """The mean over the pairs of kinds of the loss between both."""
        losses = []
        for both in ([vectors[name] for name in pair] for pair in self.PAIRS):
            if self.config.loss == "sigmoid":
                losses.append(sigmoid_loss(*both, heat["scale"], heat["bias"], real))
            else:
                losses.append(softmax(*both, heat["scale"], real))
        return sum(total for total, _ in losses) / len(losses), losses[0][1]

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        """The loss within a batch, and the share of images whose own text is the most similar (with
        other pairs of kinds the first of them)."""
        heat, real = self.apply(params, method="temperature"), batch["tokens_mask"][:, 0]
        vectors = self._embed(params, batch)
        first, second = (vectors[name] for name in self.PAIRS[0])
        near = jnp.where(real, first @ second.T, -2.0).argmax(axis=1)
        right = (near == jnp.arange(len(near))).astype(jnp.float32)
        loss = self._pair(vectors, heat, real, softmax_loss)
        return {"loss": loss, "accuracy": masked_sum(right, real)}

    # What the run reports and keeps.

    def assets(self) -> dict[str, bytes]:
        return super().assets() | self._form

    def details(self) -> list[str]:
        lengths = [len(ids) for ids in self.tokenizer.encode_batch(list(self.train_texts()))]
        cut = sum(length > self.length - 2 for length in lengths)
        return [
            f"vocabulary: {self.tokenizer.vocab_size:,} pieces; texts of {self.length} tokens, to "
            f"which {cut:,} of {len(lengths):,} of the training set are cut"
        ]


build = Contrastive
