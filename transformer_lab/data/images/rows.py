"""What a reader of an image set finds."""

from typing import Any, NamedTuple


class Part(NamedTuple):
    """A split: images as uint8 arrays, paths or bytes, and the number of each one's class."""

    items: Any  # has a length and an item at each number
    labels: Any
    content: str  # text or digest that differs where the data does


class Found(NamedTuple):
    """The splits that a set has: "train" and, of "validation" and "test", its own."""

    parts: dict[str, Part]
    names: list[str]  # of the classes
    channels: int  # of its images, where the config does not say
    licence: str
