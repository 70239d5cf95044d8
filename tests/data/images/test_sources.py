"""Sets of labelled images: their files, their splits, and the share that is used."""

import gzip
import json
import struct
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from tests.data.images.test_reading import encoded
from transformer_lab.data.images.normalise import Normalisation, moments
from transformer_lab.data.images.sources import ImageConfig, load_images
from transformer_lab.data.sources import idx
from transformer_lab.errors import LabError

SPLITS = ("train", "validation", "test")
NAMES = ["no", "yes"]


def idx_bytes(array, code=8):
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, code, array.ndim]) + shape + array.tobytes()


def some_images(count, seed=0, classes=2, size=(3, 4)):
    """Image i is full of i, its class i % classes."""
    pixels = np.broadcast_to(np.arange(count)[:, None, None], (count, *size)).astype(np.uint8)
    return pixels, (np.arange(count) % classes).astype(np.uint8)


def write_idx(folder, sizes, pack=gzip.compress, suffix=".gz"):
    for split, count in sizes.items():
        images, labels = some_images(count)
        (folder / f"{split}-images-idx3-ubyte{suffix}").write_bytes(pack(idx_bytes(images)))
        (folder / f"{split}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx_bytes(labels)))
    return str(folder)


def rows(images):
    return [(int(row["image"].flat[0]), row["label"]) for row in images]


@pytest.mark.parametrize("pack, suffix", [(gzip.compress, ".gz"), (bytes, "")])
def test_idx_files_keep_their_own_test_split(tmp_path, pack, suffix):
    path = write_idx(tmp_path, {"train": 40, "t10k": 6}, pack, suffix)
    splits = load_images(ImageConfig(source="idx", path=path, validation_share=0.25))
    assert splits.report == {"read": 46, "train": 30, "validation": 10, "test": 6}
    assert rows(splits.test) == [(i, i % 2) for i in range(6)]
    assert sorted(rows(splits.train) + rows(splits.validation)) == [(i, i % 2) for i in range(40)]
    assert Counter(label for _, label in rows(splits.validation)) == {0: 5, 1: 5}
    assert splits.labels == ["0", "1"] and splits.train[0]["image"].shape == (3, 4, 1)
    colour = load_images(ImageConfig(source="idx", path=path, channels=3, size=(6, 2)))
    assert colour.train[0]["image"].shape == (6, 2, 3)


def test_two_idx_files_by_path_are_cut_into_three_splits(tmp_path):
    write_idx(tmp_path, {"train": 40})
    path = ",".join(str(file) for file in sorted(tmp_path.iterdir()))
    splits = load_images(ImageConfig(source="idx", path=path))
    assert [len(getattr(splits, split)) for split in SPLITS] == [32, 4, 4]
    assert sorted(sum((rows(getattr(splits, s)) for s in SPLITS), [])) == [
        (i, i % 2) for i in range(40)
    ]


@pytest.mark.parametrize(
    "data, words",
    [
        (b"\0\0\x08\x03\0\0", "is no IDX file: it starts with 00000803"),
        (b"words", "is no IDX file: it starts with 776f7264"),
        (b"", "is no IDX file: it starts with nothing"),
        (idx_bytes(np.zeros((2, 3), np.uint8))[:-1], r"is damaged: 5 bytes do not make \(2, 3\)"),
        (gzip.compress(b"x" * 50, mtime=0)[:-9], "cannot be read"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path, data, words):
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(data)
    with pytest.raises(LabError, match=f"{file.name} {words}"):
        idx.read_array(file)
    values = np.asarray([[1, -2], [70_000, 5]], ">i4")  # whole, and in their byte order
    file.write_bytes(idx_bytes(values, 12))
    np.testing.assert_array_equal(idx.read_array(file), values)
    write_idx(tmp_path, {"train": 4})
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(idx_bytes(np.zeros(3, np.uint8)))
    file.unlink()
    with pytest.raises(LabError, match="does not label 4 images"):
        load_images(ImageConfig(source="idx", path=str(tmp_path)))


def test_a_share_is_balanced_nested_and_leaves_the_held_out_images_alone():
    whole = load_images(ImageConfig(source="digits"))
    assert [len(getattr(whole, s)) for s in SPLITS] == [1439, 179, 179]
    counts, before, held = Counter(whole.train.labels), set(), rows(whole.test)
    for share in (0.01, 0.1, 0.3):
        some = load_images(ImageConfig(source="digits", share=share))
        assert Counter(some.train.labels) == {
            label: max(1, round(share * count)) for label, count in counts.items()
        }
        assert some.report["over_share"] == len(whole.train) - len(some.train)
        assert rows(some.test) == held
        keys = {row["image"].tobytes() for row in some.train}
        assert before <= keys and some.content != whole.content
        before = keys
    other = load_images(ImageConfig(source="digits", share=0.3, share_seed=1))
    assert {row["image"].tobytes() for row in other.train} != before


def test_the_same_config_gives_the_same_content_and_another_split_another():
    prints = [
        load_images(ImageConfig(source="digits", **changes)).content
        for changes in ({}, {}, {"split_seed": 1}, {"size": (9, 9)}, {"channels": 3})
    ]
    assert prints[0] == prints[1] and len(set(prints)) == 4


def write_folders(folder, splits=("",)):
    for split in splits:
        for name in ("10", "9"):
            place = folder / split / name / "deeper"
            place.mkdir(parents=True)
            for i in range(4):
                colour = (int(name), 2 * i, len(split))
                Image.new("RGB", (4, 3), colour).save(place / f"{i}.PNG")
            (place / "notes.txt").write_text("no image", "utf-8")
    return str(folder)


def test_folders_are_classes_and_numbers_come_by_value(tmp_path):
    config = ImageConfig(
        source="folders", path=write_folders(tmp_path), validation_share=0.25, test_share=0.25
    )
    splits = load_images(config)
    assert splits.labels == ["9", "10"]
    assert splits.report == {"read": 8, "train": 4, "validation": 2, "test": 2}
    for split in SPLITS:
        for row in getattr(splits, split):
            assert row["image"].shape == (3, 4, 3)
            assert row["image"][0, 0, 0] == int(splits.labels[row["label"]])
    (tmp_path / "9" / "deeper" / "4.png").write_bytes(encoded(np.full((3, 4), 9, np.uint8)))
    again = load_images(config)
    assert again.content != splits.content and len(again.train) == 5


def test_a_folders_own_splits_stay(tmp_path):
    path = write_folders(tmp_path, SPLITS)
    splits = load_images(ImageConfig(source="folders", path=path))
    for split in SPLITS:
        found = getattr(splits, split)
        assert len(found) == 8 and {int(row["image"][0, 0, 2]) for row in found} == {len(split)}


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_table_names_files_beside_it(tmp_path, suffix):
    write_folders(tmp_path)
    named = [(f"{n}/deeper/{i}.PNG", f"class {n}") for i in range(4) for n in ("9", "10")]
    lines = ["path,label", *(",".join(row) for row in named)]
    if suffix == "jsonl":
        lines = [json.dumps(dict(zip(("path", "label"), row, strict=True))) for row in named]
    table = tmp_path / f"some.{suffix}"
    table.write_text("\n".join(lines), "utf-8")
    config = ImageConfig(source="table", path=str(table), validation_share=0.0, test_share=0.0)
    splits = load_images(config)
    assert splits.labels == ["class 10", "class 9"]
    assert [(int(r["image"][0, 0, 0]), splits.labels[r["label"]]) for r in splits.train] == [
        (int(label[6:]), label) for _, label in named
    ]
    table.write_text(table.read_text("utf-8").replace("9/deeper/0.PNG", "gone.png"), "utf-8")
    with pytest.raises(LabError, match=rf"some\.{suffix}:\d: no file .*gone\.png"):
        load_images(config)
    table.write_text("file,label\na.png,x\n" if suffix == "csv" else '{"file": "a.png"}\n', "utf-8")
    with pytest.raises(LabError, match='no column "path".*set config.data.path_column'):
        load_images(config)


def test_moments_are_those_of_all_pixels():
    splits = load_images(ImageConfig(source="digits", channels=3, share=0.2))
    pixels = np.stack([row["image"] for row in splits.train]) / 255
    norm = moments(splits.train)
    np.testing.assert_allclose(norm.mean, pixels.mean(axis=(0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(norm.std, pixels.std(axis=(0, 1, 2)), rtol=1e-9)
    scaled = norm(np.stack([row["image"] for row in splits.train]))
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled.mean(axis=(0, 1, 2)), 0, atol=1e-4)
    np.testing.assert_allclose(scaled.std(axis=(0, 1, 2)), 1, atol=1e-4)
    found = Normalisation((0.5, 0.2), (0.25, 0.1))(np.asarray([[[255, 0]]], np.uint8))
    np.testing.assert_allclose(found, [[[2.0, -2.0]]], rtol=1e-6)


@pytest.mark.parametrize("name", ["val", "valid", "dev", "validation"])
def test_image_folders_know_the_names_of_validation_and_pass_over_hidden_files(tmp_path, name):
    for split, count in {"train": 10, name: 4}.items():
        for label in NAMES:
            folder = tmp_path / split / label
            (folder / ".ipynb_checkpoints").mkdir(parents=True)
            for i in range(count):
                Image.new("L", (2, 2), i).save(folder / f"{i}.png")
            Image.new("L", (2, 2)).save(folder / ".ipynb_checkpoints" / "0-checkpoint.png")
            (folder / "._0.png").write_bytes(b"no image")
    splits = load_images(ImageConfig(source="folders", path=str(tmp_path)))
    assert splits.report == {"read": 28, "train": 20, "validation": 8, "test": 0}
    (tmp_path / ("dev" if name != "dev" else "val") / "x").mkdir(parents=True)
    with pytest.raises(LabError, match=" and .* are both the validation split"):
        load_images(ImageConfig(source="folders", path=str(tmp_path)))


@pytest.mark.parametrize(
    "images, labels, words",
    [
        (np.zeros((2, 1, 1), "u1"), np.asarray([0, 2**31 - 1], ">i4"), "label 2,147,483,647, but"),
        (np.zeros((0, 3, 4), "u1"), np.zeros(0, "u1"), r"holds no images: uint8 \(0, 3, 4\)"),
        (np.zeros((2, 0, 4), "u1"), np.zeros(2, "u1"), r"holds no images: uint8 \(2, 0, 4\)"),
    ],
    ids=["a label that would make a class of each number", "no images", "no pixels"],
)
def test_idx_sizes_that_no_model_can_take_are_refused(tmp_path, images, labels, words):
    (tmp_path / "train-images").write_bytes(idx_bytes(images))
    (tmp_path / "train-labels").write_bytes(idx_bytes(labels, 12 if labels.itemsize == 4 else 8))
    path = f"{tmp_path}/train-images,{tmp_path}/train-labels"
    with pytest.raises(LabError, match=words):
        load_images(ImageConfig(source="idx", path=path))


def test_idx_headers_are_believed_only_as_far_as_the_file_goes(tmp_path):
    file = tmp_path / "x"
    file.write_bytes(bytes([0, 0, 8, 255]) + b"\0\0\0\1" * 255 + b"\0")
    with pytest.raises(LabError, match=r"x is damaged: 1 bytes do not make \(1, 1, 1"):
        idx.read_array(file)
    file.write_bytes(gzip.compress(b"\0\0\x08\1\0\0\0\1" + bytes(50_000_000)))
    with pytest.raises(LabError, match=r"x is damaged: more bytes do not make \(1,\)"):
        idx.read_array(file)


def test_stamps_have_the_category_of_their_folder(tmp_path):
    root = tmp_path / "usr" / "share" / "tuxpaint" / "stamps"
    for name in ("animals/birds/owl", "animals/cat", "food/fruit/fig", "food/fig_mirror",
                 "symbols/alphabets/a"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGBA", (4, 4), (9, 9, 9, 0)).save(root / f"{name}.png")
    config = {"source": "stamp_categories", "validation_share": 0.0, "test_share": 0.0}
    for path in (tmp_path, root):
        splits = load_images(ImageConfig(**config, path=str(path)))
        assert splits.labels == ["animals", "food"] and splits.train.labels == [0, 0, 1]
        assert (splits.train[0]["image"] == 255).all()  # what is transparent is white
    with pytest.raises(LabError, match="no stamps of Tux Paint below"):
        load_images(ImageConfig(**config, path=str(root / "food")))


def test_a_damaged_image_is_found_before_training_or_counted_and_left_out(tmp_path):
    for label in NAMES:
        (tmp_path / label).mkdir()
        for i in range(5):
            Image.new("L", (2, 2), i).save(tmp_path / label / f"{i}.png")
    whole = (tmp_path / "yes" / "3.png").read_bytes()
    (tmp_path / "yes" / "3.png").write_bytes(whole[: len(whole) // 2])
    config = {"source": "folders", "path": str(tmp_path), "channels": 1}
    with pytest.raises(LabError, match="yes/3.png cannot be read .* config.data.skip_damaged"):
        load_images(ImageConfig(**config))
    splits = load_images(
        ImageConfig(**config, skip_damaged=True, validation_share=0.0, test_share=0.0)
    )
    assert splits.report == {"read": 10, "damaged": 1, "train": 9, "validation": 0, "test": 0}
    assert rows(splits.train) == [(i, 0) for i in range(5)] + [(i, 1) for i in (0, 1, 2, 4)]


def test_floats_are_not_taken_for_bytes():
    form = Normalisation((0.5,), (0.25,))
    with pytest.raises(LabError, match="float32 are not the bytes"):
        form(np.zeros((1, 2, 2, 1), np.float32))
