"""Prepared TensorFlow Datasets sets of every kind, written here without TensorFlow."""

import json
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from tests.data.images.test_reading import encoded
from transformer_lab.data.documents import DocumentsConfig, load_documents
from transformer_lab.data.images.sources import ImageConfig, load_images
from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.data.sources import tfds
from transformer_lab.errors import LabError


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def message(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + varint(len(content)) + content


def tf_example(features: dict[str, bytes | int]) -> bytes:
    """A serialised tf.train.Example of one string or number a feature."""
    entries = b""
    for name, value in features.items():
        number = isinstance(value, int)
        found = message(3, message(1, varint(value))) if number else message(1, message(1, value))
        entries += message(1, message(1, name.encode()) + message(2, found))
    return message(1, entries)


def prepare(root, info: dict, splits: dict[str, Iterable[dict]], features: Callable) -> None:
    """A prepared set as TFDS lays it out."""
    library = pytest.importorskip("tensorflow_datasets")
    writers = pytest.importorskip("array_record.python.array_record_module")
    root.mkdir(parents=True)
    about = []
    for split, rows in splits.items():
        file = root / f"tiny-{split}.array_record-00000-of-00001"
        writer, rows = writers.ArrayRecordWriter(str(file), "group_size:1"), list(rows)
        for row in rows:
            writer.write(tf_example(row))
        writer.close()
        name = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        about.append({"name": split, "shardLengths": [str(len(rows))], "filepathTemplate": name})
    info = {"name": "tiny", "version": "1.0.0", "fileFormat": "array_record", **info}
    (root / "dataset_info.json").write_text(json.dumps({**info, "splits": about}), "utf-8")
    features(library.features).save_config(str(root))


def prepare_pairs(folder, sizes: dict[str, int]) -> None:
    splits = {
        split: [{"de": f"{split} Straße {i}".encode(), "en": f"{split} street {i}".encode()}
                for i in range(count)]
        for split, count in sizes.items()
    }  # fmt: skip
    features = lambda kinds: kinds.Translation(languages=("de", "en"))  # noqa: E731
    prepare(folder / "tiny/de-en/1.0.0", {"configName": "de-en"}, splits, features)


def tfds_config(tmp_path, **settings):
    settings = {"languages": "en-de", "tfds_name": "tiny/de-en", **settings}
    return PairsConfig(source="tfds", path=str(tmp_path), **settings)


def test_tfds_splits_are_read_lazily_with_fields_named_by_the_languages(tmp_path):
    prepare_pairs(tmp_path, {"train": 300, "validation": 2, "test": 3})
    splits = load_pairs(tfds_config(tmp_path))
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [300, 2, 3]
    assert splits.train[1] == splits.train[-299] == ("train street 1", "train Straße 1")
    assert list(splits.test)[2] == ("test street 2", "test Straße 2")
    with pytest.raises(IndexError):
        splits.test[3]
    assert len(load_pairs(tfds_config(tmp_path, max_pairs=7)).train) == 7
    other = load_pairs(tfds_config(tmp_path, languages="de-en"))
    assert other.train[1] == ("train Straße 1", "train street 1")
    prints = [s.fingerprint() for s in (splits, load_pairs(tfds_config(tmp_path)), other)]
    assert prints[0] == prints[1] != prints[2]


def test_a_tfds_split_that_is_missing_is_cut_from_training(tmp_path):
    prepare_pairs(tmp_path, {"train": 10, "test": 3})
    splits = load_pairs(tfds_config(tmp_path, validation_size=4))
    assert [source for source, _ in splits.validation] == [
        f"train street {i}" for i in range(6, 10)
    ]
    assert [len(splits.train), len(splits.test)] == [6, 3]
    assert splits.train[-1][0] == "train street 5"


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"tfds_name": "tiny/en-xx"}, "tiny/en-xx is not prepared.*tfds build tiny/en-xx"),
        ({"languages": "en-dd"}, 'tiny/de-en has no field "dd"'),
    ],
)
def test_tfds_says_how_to_prepare_a_set(settings, message, tmp_path):
    prepare_pairs(tmp_path, {"train": 3, "validation": 1, "test": 1})
    with pytest.raises(LabError, match=message):
        load_pairs(tfds_config(tmp_path, **settings))


def test_tfds_documents_keep_their_splits_and_hold_out_those_that_are_missing(monkeypatch):
    examples = {s: [{"text": f"{s} é{i}".encode()} for i in range(10)] for s in ("train", "test")}
    monkeypatch.setattr(tfds, "prepared", lambda name, folder: examples)
    config = DocumentsConfig("tfds", tfds_name="lm1b", validation_share=0.2)
    documents = load_documents(config)
    assert documents.test == [f"test é{i}" for i in range(10)]
    assert len(documents.validation) == 2
    assert sorted(documents.train + documents.validation) == [f"train é{i}" for i in range(10)]
    examples["train"] = [{"texts": "a"}]
    with pytest.raises(LabError, match='^config.data.tfds_name: lm1b has no field "text"'):
        load_documents(config)


def test_a_prepared_set_of_images_is_read_lazily_with_its_own_names(tmp_path):
    def rows(count):
        images = (np.full((3, 4), i, np.uint8) for i in range(count))
        return [{"image": encoded(x), "label": i % 2} for i, x in enumerate(images)]

    def features(kinds):
        label = kinds.ClassLabel(names=["no", "yes"])
        return kinds.FeaturesDict({"image": kinds.Image(shape=(3, 4, 1)), "label": label})

    prepare(tmp_path / "tiny/1.0.0", {}, {"train": rows(20), "test": rows(3)}, features)
    splits = load_images(ImageConfig(source="tfds", tfds_name="tiny", path=str(tmp_path)))
    assert splits.labels == ["no", "yes"]
    assert splits.report == {"read": 23, "train": 18, "validation": 2, "test": 3}
    found = [
        [(int(row["image"].flat[0]), row["label"]) for row in part]
        for part in (splits.test, [*splits.train, *splits.validation])
    ]
    assert found[0] == [(0, 0), (1, 1), (2, 0)]
    assert sorted(found[1]) == [(i, i % 2) for i in range(20)]
