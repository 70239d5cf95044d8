"""Reads prepared TensorFlow Datasets lazily and without TensorFlow."""

from collections.abc import Callable, Sequence
from typing import Any

from transformer_lab.data.images.sources import FoundImages, ImageSet
from transformer_lab.data.splits import SPLITS, Found, Item, Report
from transformer_lab.errors import LabError, nearest


class Lazy(Sequence):
    """Some examples of a random-access data set, each read and converted when it is asked for."""

    def __init__(self, examples: Sequence[Any], make: Callable[[Any], Any], numbers: range):
        self._examples, self._make, self._numbers = examples, make, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index):
        """The converted example at an index; a slice gives another lazy sequence."""
        if isinstance(index, slice):
            return Lazy(self._examples, self._make, self._numbers[index])
        return self._make(self._examples[self._numbers[index]])


def pairs(config: Any, report: Report) -> Found:
    """Pairs of the features named after the languages; missing splits are cut off train's end."""
    whole = _texts(config, config.sides(), "languages")
    train, splits = whole["train"], {}
    for split, size in (("test", config.test_size), ("validation", config.validation_size)):
        if split not in whole:
            cut = max(0, len(train) - size)
            whole[split], train = train[cut:], train[:cut]
        splits[split] = whole[split]
    return Found({"train": train, **splits}, _licence(config))


def documents(config: Any, report: Report) -> Found:
    """The texts of the feature "text", all read into memory."""
    found = _texts(config, ("text",), "tfds_name")
    parts = {s: [Item(t, t) for (t,) in found[s]] for s in SPLITS if found.get(s)}
    return Found(parts, _licence(config))


def _texts(config: Any, fields: tuple[str, ...], key: str) -> dict[str, Sequence]:
    """The texts of some features in each split; `key` is the config's key for messages."""
    name, sources = config.tfds_name, prepared(config.tfds_name, config.path)
    if not sources.get("train"):
        raise LabError(f"{name} has no training examples: its splits are {', '.join(sources)}")
    example = sources["train"][0]
    for field in fields:
        if field not in example:
            valid = nearest(field, example)
            raise LabError(f'config.data.{key}: {name} has no field "{field}"{valid}')

    def make(example: dict[str, Any]) -> tuple[str, ...]:
        values = (example[field] for field in fields)
        return tuple(v.decode("utf-8") if isinstance(v, bytes) else str(v) for v in values)

    return {split: Lazy(found, make, range(len(found))) for split, found in sources.items()}


def images(config: Any) -> FoundImages:
    """The splits of a data set that has the features `image` and `label`."""
    import tensorflow_datasets as tfds

    name, options = config.tfds_name, {"decoders": {"image": tfds.decode.SkipDecoding()}}
    sources = prepared(name, config.path, **options)
    sources = {split: found for split, found in sources.items() if split in SPLITS}
    if not sources.get("train"):
        raise LabError(f"{name} has no training examples")
    features = sources["train"].dataset_info.features
    if not {"image", "label"} <= set(features):
        raise LabError(f'{name} has no "image" and "label": its features are {", ".join(features)}')
    columns = {
        split: [Lazy(found, _feature(key), range(len(found))) for key in ("image", "label")]
        for split, found in sources.items()
    }
    parts = {split: ImageSet(*both, f"{name} {len(both[0])}") for split, both in columns.items()}
    channels = features["image"].shape[-1] or 3
    return FoundImages(parts, list(features["label"].names), channels, _licence(config))


def _feature(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda example: example[key]


def _licence(config: Any) -> str:
    return f"see https://www.tensorflow.org/datasets ({config.tfds_name})"


def prepared(name: str, folder: str, **options: Any) -> dict[str, Any]:
    """All splits of a data set on disk, as `tfds.data_source`; nothing is downloaded."""
    if not name:
        raise LabError('config.data.tfds_name is empty: name a set, as "wmt14_translate/de-en"')
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise LabError(
            'config.data.source = "tfds" needs `pip install tensorflow-datasets`'
        ) from error
    try:
        return dict(tfds.data_source(name, data_dir=folder or None, download=False, **options))
    except Exception as error:  # the library raises many kinds, some with pages of text
        raise LabError(
            f"{name} is not prepared for random access: run `tfds build {name} "
            "--file_format=array_record` where TensorFlow is installed, and set config.data.path "
            "to its data directory if that is not the default one"
        ) from error
