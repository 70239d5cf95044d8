"""What a trained model can be asked for: a protocol for each thing that some tasks do with it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from transformer_lab.tasks.base import Params, Place


@runtime_checkable
class Continues(Protocol):
    """A task whose model continues texts."""

    def prompt_ids(self, prompt: str) -> list[int]:
        """The ids that the model reads of a text before it writes."""

    def generator(self, place: Place | None = None) -> Any:
        """The loop that continues prompts."""


@runtime_checkable
class Translates(Protocol):
    """A task whose model writes a text for a text."""

    def translate(
        self,
        decoder: Any,
        params: Params,
        sentences: list[str],
        say: Callable[[str], None] | None = None,
    ) -> list[list[str]]:
        """The outputs for each text, the best first."""


@runtime_checkable
class Predicts(Protocol):
    """A task whose model says something of a text, or of a file with an image."""

    def predict(self, params: Params, texts: Sequence[str], place: Place) -> list[dict[str, Any]]:
        """What it says of each, by name."""


@runtime_checkable
class EmbedsTexts(Protocol):
    """A task whose model has vectors of texts beside those of images."""

    def text_vectors(self, params: Params, texts: Sequence[str], place: Place) -> Any:
        """A vector of each text, of length 1."""
