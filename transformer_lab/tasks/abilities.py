"""Protocols for what a trained model can be asked to do; a task offers those that apply to it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from transformer_lab.tasks.base import Params, Place


@runtime_checkable
class Continues(Protocol):
    """A task whose model generates the continuation of a given text."""

    def prompt_ids(self, prompt: str) -> list[int]:
        """The token ids of a prompt as the model reads it, with any start token it needs."""

    def generator(self, place: Place | None = None) -> Any:
        """The decoding loop that continues prompts; `place` puts its batches on the devices."""


@runtime_checkable
class Translates(Protocol):
    """A task whose model reads a text and writes another, such as its translation."""

    def translate(
        self,
        decoder: Any,
        params: Params,
        sentences: list[str],
        say: Callable[[str], None] | None = None,
    ) -> list[list[str]]:
        """The outputs for each sentence, best first; `say` receives a line on the progress."""


@runtime_checkable
class Predicts(Protocol):
    """A task whose model predicts something, such as a class, about a text or an image file."""

    def predict(self, params: Params, texts: Sequence[str], place: Place) -> list[dict[str, Any]]:
        """One dictionary for each text or path: its predictions by name, such as "label"."""


@runtime_checkable
class Detects(Protocol):
    """A task whose model finds the objects of an image."""

    labels: Sequence[str]  # the names of the classes

    def detect(self, params: Params, path: str, place: Place) -> tuple[Any, Any]:
        """An image file as an array, and its objects: boxes (left, top, right, bottom in pixels),
        scores and class numbers, best first."""


@runtime_checkable
class Draws(Protocol):
    """A task whose model makes pictures from texts."""

    def draw(
        self, params: Params, texts: Sequence[str], copies: int, seed: int, place: Place
    ) -> Any:
        """So many pictures of each text: uint8 [texts, copies, height, width, channels]."""


@runtime_checkable
class Foretells(Protocol):
    """A task whose model forecasts series."""

    def forecast(self, params: Params, series: Sequence[Any], place: Place) -> Any:
        """Quantiles of the steps after each of some `data.series.Series`: [series, steps,
        quantiles], for the levels of the task's config."""


def named_objects(task: Detects, found: Any, threshold: float) -> list[dict[str, Any]]:
    """What `detect` found with at least this score, as one dictionary for each object."""
    return [
        {"label": task.labels[label], "score": float(score), "box": [*map(float, box)]}
        for box, score, label in zip(*found, strict=True)
        if score >= threshold
    ]


@runtime_checkable
class Transcribes(Protocol):
    """A task whose model writes down what is said in audio."""

    def transcriber(self, **changes: Any) -> Any:
        """Maps parameters and audio to segments of text; `changes` replace settings of speech."""


@runtime_checkable
class EmbedsImages(Protocol):
    """A task whose model maps images to vectors."""

    def read_images(self, paths: Sequence[str]) -> Any:
        """Image files in the model's size and channels: uint8 [images, height, width, channels]."""

    def image_vectors(self, params: Params, images: Any, place: Place) -> Any:
        """One vector for each image: an array [images, width]."""


@runtime_checkable
class EmbedsTexts(Protocol):
    """A task whose model maps texts to vectors in the same space as those of images."""

    def text_vectors(self, params: Params, texts: Sequence[str], place: Place) -> Any:
        """One vector of norm 1 for each text: an array [texts, width]."""
