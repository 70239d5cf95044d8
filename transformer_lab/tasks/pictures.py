"""What tasks share that make images: pictures with the texts that are their conditions."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, UInt8

from transformer_lab import text
from transformer_lab.data.batching import RowPlan
from transformer_lab.data.images import batches, pixels, sources
from transformer_lab.data.images.augment import AugmentConfig
from transformer_lab.data.pipeline import Batches
from transformer_lab.data.ragged import Ragged, fill
from transformer_lab.errors import LabError, at_least, fractions, known
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores
from transformer_lab.tasks.building import Shapes, parts_of, shapes_of
from transformer_lab.tasks.labels import Labelled

CONDITIONS = ("label", "text", "none")


@dataclass(frozen=True)
class PicturesConfig:
    """Settings of a model that makes images, the config section `task`."""

    condition: str = "label"  # what it is told of an image: its class's name, its text, or nothing
    drop: float = 0.1  # how often it is told nothing in training, for guidance (Ho 2022)
    samples: int = 10  # classes, or held-out texts, of which images are drawn at the end ...
    copies: int = 8  # ... so many of each

    def __post_init__(self):
        known("task.condition = ", self.condition, CONDITIONS)
        fractions(self, "task", "drop")
        at_least(self, "task", 0, "samples")
        at_least(self, "task", 1, "copies")


@dataclass(frozen=True)
class DrawingConfig:
    """How images are drawn from noise, the config section `decode`."""

    guidance: float = 2.0  # how far predictions are pushed towards the text; 1: not at all
    steps: int = 50  # calls of the model for an image
    rows: int = 64  # images drawn at once

    def __post_init__(self):
        at_least(self, "decode", 0, "guidance")
        at_least(self, "decode", 1, "steps", "rows")


IMAGES = {
    "data": sources.ImageConfig,
    "batch": batches.ImageBatchConfig,
    "augment": AugmentConfig,
}
SECTIONS = {**IMAGES, "tokenizer": text.TokenizerConfig, "decode": DrawingConfig}


class OnImages(Labelled):
    """A task on images of the model's size, whose batches hold `image` and `mask`.

    `image` is uint8 [rows, height, width, channels], of clips [rows, frames, ...], and `mask` False
    at a row that only fills the batch.
    """

    COUNTED = "images"

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        if self.sections["augment"].mixes:
            raise LabError("images that are made are not mixed: set augment.mixup and cutmix to 0")
        self.size, self.channels = tuple(model_config.image_size), model_config.channels
        self.rows, count = self.sections["batch"].rows, self.sections["data"].frames
        self.shape = (*([count] if count else ()), *self.size, self.channels)  # of an image or clip

    @cached_property
    def data(self) -> sources.ImageSplits:
        form = {"size": self.size, "channels": self.channels}
        return sources.load_images(replace(self.sections["data"], **form))

    def train_labels(self) -> Iterator[str]:
        return (self.data.labels[i] for i in self.data.train.labels)

    @cached_property
    def train_plan(self) -> RowPlan:
        return batches.train_plan(self.data.train, self.rows, self.seed)

    def loader(self, split: str, augment: AugmentConfig | None) -> Callable[..., HostBatch]:
        """The function that loads a batch of a split's images."""
        return partial(_load, images=self.examples(split), augment=augment)

    def train_batches(self) -> Batches:
        load = self.loader("train", self.sections["augment"])
        return Batches(self.train_plan, load, workers=self.sections["batch"].workers)

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        load, count = self.loader(split, None), len(self.examples(split))
        for first in range(0, count, self.rows):
            ids = np.arange(first, first + self.rows)
            yield load(np.where(ids < count, ids, -1), (1,))

    def abstract_batch(self) -> Shapes:
        image = shapes_of((self.rows, *self.shape), image=np.uint8)
        return {**image, **shapes_of((self.rows,), mask=bool)}

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        return {"examples": int(batch["mask"].sum())}

    def clean(self, batch: Batch) -> Float[Array, "b *f h w c"]:
        """The images of a batch, from -1 (black) to 1."""
        return batch["image"].astype(jnp.float32) / 127.5 - 1

    def details(self) -> list[str]:
        return [
            f"{self.size[0]} x {self.size[1]} x {self.channels}, {len(self.data.labels)} classes",
            f"batches: {self.steps_per_epoch():,} an epoch, one shape: {self.rows} rows",
        ]


class Pictures(OnImages):
    """Images with texts, which are the names of their classes or what the source says of each.

    A subclass says what is learned (`sums`) and how images are drawn (`drawn`).
    """

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        self.length = model_config.max_length

    # Texts.

    def train_texts(self) -> list[str]:
        """What the tokenizer is trained on: texts, or the names of classes."""
        return self.texts("train") if self.config.condition == "text" else list(self.data.labels)

    def texts(self, split: str) -> list[str]:
        """The condition of each image of a split."""
        images = self.examples(split)
        if self.config.condition == "label":
            return [self.data.labels[i] for i in images.labels]
        if self.config.condition == "text" and images.texts is None:
            raise LabError(
                f'config.data.source = "{self.sections["data"].source}" has classes and no texts: '
                'set task.condition = "label"'
            )
        return images.texts if self.config.condition == "text" else [""] * len(images)

    def encode_texts(self, texts: Sequence[str]) -> Ragged:
        """The token ids of texts; what exceeds the model's length of a text is cut."""
        return Ragged.from_lists(ids[: self.length] for ids in self.tokenizer.encode_batch(texts))

    def loader(self, split: str, augment: AugmentConfig | None) -> Callable[..., HostBatch]:
        """The function that loads a batch of a split's images with their texts."""
        words = self.encode_texts(self.texts(split))
        return partial(super().loader(split, augment), words=words, length=self.length,
                       pad_id=self.tokenizer.pad_id)  # fmt: skip

    def abstract_batch(self) -> Shapes:
        tokens = shapes_of((self.rows, self.length), tokens=np.int32, tokens_mask=bool)
        return {**super().abstract_batch(), **tokens}

    # Images.

    def kept(self, batch: Batch, key: Key[Array, ""] | None) -> Bool[Array, "b t"]:
        """The mask of the texts; with a key it is False throughout for a random share of them."""
        mask = batch["tokens_mask"]
        if key is None:
            return mask
        return mask & ~jax.random.bernoulli(key, self.config.drop, (len(mask), 1))

    @abstractmethod
    def drawn(self, params: Params, keys: Key[Array, "b"], batch: Batch) -> Float[Array, "b h w c"]:
        """One image from -1 to 1 for each row's `tokens` and `tokens_mask`, by its random key."""

    @cached_property
    def _draw(self) -> Callable[..., Array]:
        def draw(params, batch, seed):
            keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(batch["number"])
            found = jnp.clip(self.drawn(params, keys, batch), -1, 1)
            return jnp.round((found + 1) * 127.5).astype(jnp.uint8)

        return jax.jit(draw)

    def draw(
        self, params: Params, texts: Sequence[str], copies: int, seed: int, place: Place
    ) -> UInt8[np.ndarray, "texts copies h w c"]:
        """So many images of each text, which must name a class if the model knows classes alone.

        An image depends on the seed, and on its place among all that are drawn."""
        if self.config.condition == "label":
            for one in filter(None, texts):
                known("the class ", one, self.labels)
        words = self.encode_texts(texts)
        count = len(texts) * copies
        rows = -(-self.sections["decode"].rows // self.rows_multiple) * self.rows_multiple
        found = []
        for numbers, real in parts_of(np.arange(count, dtype=np.int32), rows):
            ids = np.where(np.arange(rows) < real, numbers // copies, -1)
            batch = fill({"tokens": words}, ids, (self.length,), self.tokenizer.pad_id)
            batch = place({**batch, "number": numbers})
            found.append(np.asarray(self._draw(params, batch, seed))[:real])
        return np.concatenate(found).reshape(len(texts), copies, *self.size, self.channels)

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """For a trained model a picture of what it draws: a row of images for each class, or for
        each of the first held-out texts."""
        values = {"num_examples": float(len(self.examples(split)))}
        count = self.shown(final)
        if not count or not values["num_examples"]:
            return Scores()
        every = self.labels if self.config.condition == "label" else self.texts(split)
        texts = list(dict.fromkeys(every))[:count]
        made = self.draw(params, texts, self.config.copies, self.seed, place)
        rows = [(str(i + 1), one) for i, one in enumerate(texts)]
        return Scores(values, rows, files={"samples.png": pixels.grid(made)})

    def details(self) -> list[str]:
        every = self.tokenizer.encode_batch(self.texts("train"))
        cut = sum(len(ids) > self.length for ids in every)
        pieces = f"vocabulary: {self.tokenizer.vocab_size:,} pieces"
        return [*super().details(), f"{pieces}; {cut:,} texts are cut to {self.length} tokens"]


def _load(ids, shape, images, augment, words=None, length=0, pad_id=0) -> HostBatch:
    batch = batches.load(ids, shape, images, augment)
    del batch["label"]
    if words is None:
        return batch
    numbers = ids.reshape(len(ids), -1)[:, 0]
    return batch | fill({"tokens": words}, numbers, (length,), pad_id)
