"""Sentence pairs from a prepared TensorFlow Datasets set, read lazily and without TensorFlow."""

from collections.abc import Sequence
from typing import Any

from transformer_lab.errors import LabError, nearest


class TfdsPairs(Sequence[tuple[str, str]]):
    """Some examples of a random-access source, as (source, target) text."""

    def __init__(self, examples: Sequence[Any], fields: tuple[str, str], numbers: range):
        self._examples, self._fields, self._numbers = examples, fields, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index):
        """The pair at an index; a slice gives another lazy sequence."""
        if isinstance(index, slice):
            return TfdsPairs(self._examples, self._fields, self._numbers[index])
        example = self._examples[self._numbers[index]]
        return tuple(_text(example[field]) for field in self._fields)


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def read_splits(
    name: str, folder: str, fields: tuple[str, str], validation_size: int, test_size: int
) -> dict[str, TfdsPairs]:
    """The set's own splits; one that it lacks is cut from the end of its training split.

    `folder` is the TFDS data directory, "" for its default. Raises LabError that says how to
    prepare the set when it is not there, or when it has no such fields.
    """
    sources = prepared(name, folder)
    whole = {s: TfdsPairs(x, fields, range(len(x))) for s, x in sources.items()}
    if not whole.get("train"):
        raise LabError(f"{name} has no training examples: its splits are {', '.join(whole)}")
    _check_fields(name, sources["train"][0], fields)
    train, splits = whole["train"], {}
    for split, size in (("test", test_size), ("validation", validation_size)):
        if split not in whole:
            cut = max(0, len(train) - size)
            whole[split], train = train[cut:], train[:cut]
        splits[split] = whole[split]
    return {"train": train, **splits}


def _check_fields(name: str, example: dict[str, Any], fields: tuple[str, str]) -> None:
    for field in fields:
        if field not in example:
            valid = nearest(field, example)
            raise LabError(f'config.data.languages: {name} has no field "{field}"{valid}')


def prepared(name: str, folder: str, **options: Any) -> dict[str, Any]:
    """Every split of a set that is on disk, as `tfds.data_source`; nothing is downloaded."""
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
    except Exception as error:  # of many kinds, some with pages of text
        raise LabError(
            f"{name} is not prepared for random access: run `tfds build {name} "
            "--file_format=array_record` where TensorFlow is installed, and set config.data.path "
            "to its data directory if that is not the default one"
        ) from error
