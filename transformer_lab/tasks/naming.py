"""Zero-shot classification and retrieval with the vectors of two towers."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from transformer_lab.data import emoji
from transformer_lab.data.drawings import plain
from transformer_lab.data.images.reading import read_image
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores, Task
from transformer_lab.tasks.building import parts_of

Vectors = Float[np.ndarray, "n d"]


def recalls(
    name: str,
    near: Float[np.ndarray, "n k"],
    right: Int[np.ndarray, "n"],
    ranks: Sequence[int],
) -> dict[str, float]:
    """The share of rows whose right column is among the k most similar; a tie counts as a miss."""
    own = np.take_along_axis(near, right[:, None], axis=1)
    before = (near >= own).sum(axis=1) - 1
    return {f"{name}{k}": float((before < k).mean()) for k in ranks}


class Naming(Task):
    """A task on two towers, which defines `rows`, `size`, `encode_texts`, `apply` and `pixels`."""

    rows: int  # rows of a batch
    size: tuple[int, int]  # height and width of an image in pixels
    encode_texts: Callable[[Sequence[str]], HostBatch]
    apply: Callable[..., Any]  # applies the model to its parameters and inputs
    pixels: Callable[[Array], Array]  # converts an image's bytes to the model's input

    @cached_property
    def _encoders(self) -> dict[str, Callable[[Params, Batch], Array]]:
        images = lambda p, b: self.apply(p, self.pixels(b["image"]), method="encode_images")  # noqa: E731
        texts = lambda p, b: self.apply(p, b["tokens"], method="encode_texts")  # noqa: E731
        return {"image": jax.jit(images), "tokens": jax.jit(texts)}

    def _vectors(self, params: Params, name: str, values: np.ndarray, place: Place) -> Vectors:
        found = [np.zeros((0, self.model_config.common_width), np.float32)]
        for part, count in parts_of(values, self.rows):
            found.append(np.asarray(self._encoders[name](params, place({name: part})))[:count])
        return np.concatenate(found)

    def image_vectors(
        self, params: Params, images: UInt8[np.ndarray, "n h w c"], place: Place
    ) -> Vectors:
        """One vector of norm 1 for each image: an array [images, width]."""
        return self._vectors(params, "image", images, place)

    def text_vectors(self, params: Params, texts: Sequence[str], place: Place) -> Vectors:
        """One vector of norm 1 for each text: an array [texts, width]."""
        return self._vectors(params, "tokens", self.encode_texts(texts)["tokens"], place)

    def class_vectors(
        self, params: Params, prompts: Sequence[Sequence[str]], place: Place
    ) -> Vectors:
        """The mean vector of each class's prompts, scaled to norm 1 (Radford 2021, 3.1.4)."""
        flat = self.text_vectors(params, [one for some in prompts for one in some], place)
        starts = np.cumsum([0, *map(len, prompts)])[:-1]
        sums = np.add.reduceat(flat, starts, axis=0)
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)

    def read_images(self, paths: Sequence[str | Path]) -> UInt8[np.ndarray, "n h w c"]:
        """Reads image files in the size and channels of the model's image tower."""
        channels = self.model_config.tower.channels
        return np.stack([read_image(path, channels, tuple(self.size)) for path in paths])

    def probabilities(
        self, params: Params, images: Vectors, classes: Vectors
    ) -> Float[np.ndarray, "n k"]:
        """The probabilities of the classes for each image, independent with a sigmoid loss."""
        heat = jax.device_get(self.apply(params, method="temperature"))
        logits = heat["scale"] * images @ classes.T + heat["bias"]
        one = self.config.loss == "sigmoid"
        return np.asarray(jax.nn.sigmoid(logits) if one else jax.nn.softmax(logits, axis=1))

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """Zero-shot accuracy, retrieval recall in both directions, the category's accuracy and,
        once trained, zero-shot accuracy on another artist's drawings of the training concepts."""
        concepts, data = self.examples(split), self.data
        if not concepts:
            return Scores()
        plainly = lambda pictures, rows: self.image_vectors(  # noqa: E731
            params, plain(pictures[rows], self.size), place
        )
        named = lambda some: self.class_vectors(  # noqa: E731
            params, [emoji.prompts(c.name, next(iter(c.tags))) for c in some], place
        )
        images = plainly(data.pictures, [c.drawings[0].row for c in concepts])
        own, names = np.arange(len(concepts)), named(concepts)
        values = recalls("zero_shot_top", images @ names.T, own, (1, 5))
        described = self.class_vectors(params, [emoji.descriptions(c) for c in concepts], place)
        values |= recalls("described_top", images @ described.T, own, (1, 5))
        whole = [emoji.descriptions(c)[len(emoji.TEMPLATES["en"])] for c in concepts]
        near = images @ self.text_vectors(params, whole, place).T
        values |= recalls("image_to_text_recall_", near, own, (1, 5, 10))
        values |= recalls("text_to_image_recall_", near.T, own, (1, 5, 10))
        categories = [[*c.split(" & "), c] for c in data.categories]
        prompts = [[p for part in parts for p in emoji.prompts(part)] for parts in categories]
        right = np.array([data.categories.index(c.category) for c in concepts])
        near = images @ self.class_vectors(params, prompts, place).T
        values |= recalls("category_top", near, right, (1,))
        if final:
            others = plainly(data.others, [c.other for c in data.train])
            near, own = others @ named(data.train).T, np.arange(len(data.train))
            values |= recalls("other_artist_top", near, own, (1, 5))
        guesses = np.argsort(-(images @ names.T), axis=1)[: self.shown(final), :3]
        samples = [
            (concepts[i].code, ", ".join(concepts[j].name for j in row), concepts[i].name)
            for i, row in enumerate(guesses)
        ]
        return Scores(values | {"num_examples": len(concepts)}, samples)
