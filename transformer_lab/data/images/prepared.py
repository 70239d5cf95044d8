"""Images of a prepared TensorFlow Datasets set, read lazily and without TensorFlow."""

from collections.abc import Sequence
from typing import Any

from transformer_lab.data.images.rows import Found, Part
from transformer_lab.data.tfds_pairs import prepared
from transformer_lab.data.user_files import SPLITS
from transformer_lab.errors import LabError


class Column(Sequence):
    """One feature of every example, read when asked for; images as the bytes of their files."""

    def __init__(self, examples: Sequence[dict[str, Any]], feature: str):
        self._examples, self._feature = examples, feature

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._examples[int(index)][self._feature]


def read(name: str, folder: str) -> Found:
    """The set's own splits; it must have the features `image` and `label`."""
    import tensorflow_datasets as tfds

    options = {"decoders": {"image": tfds.decode.SkipDecoding()}}
    sources = {s: x for s, x in prepared(name, folder, **options).items() if s in SPLITS}
    if not sources.get("train"):
        raise LabError(f"{name} has no training examples")
    features = sources["train"].dataset_info.features
    if not {"image", "label"} <= set(features):
        raise LabError(f'{name} has no "image" and "label": its features are {", ".join(features)}')
    parts = {
        split: Part(Column(source, "image"), Column(source, "label"), f"{name} {len(source)}")
        for split, source in sources.items()
    }
    channels = features["image"].shape[-1] or 3
    licence = f"see https://www.tensorflow.org/datasets ({name})"
    return Found(parts, list(features["label"].names), channels, licence)
