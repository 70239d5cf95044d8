"""Fashion-MNIST (Xiao 2017): 70,000 grey images of clothes, 28 x 28, in ten classes."""

from typing import Any

from transformer_lab.data.fetch import fetch
from transformer_lab.data.images.sources import FoundImages
from transformer_lab.data.sources import idx

PACKAGE = "dataset-fashion-mnist"
NAMES = [
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
]  # fmt: skip


def images(config: Any) -> FoundImages:
    return idx.read(config.path or str(fetch(PACKAGE)), NAMES, "MIT")
