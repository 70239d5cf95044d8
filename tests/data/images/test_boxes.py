"""Images with boxes: scaling, batches, scenes, and the formats of users' files."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transformer_lab.data.fetch import cached, fetch
from transformer_lab.data.images import boxes as data
from transformer_lab.data.images.boxes import BoxConfig, Boxed, load_boxes, scaled, to_shares
from transformer_lab.data.sources import stamps
from transformer_lab.errors import LabError

XML = """<annotation><filename>{0}.png</filename>
<size><width>6</width><height>4</height><depth>3</depth></size>
<object><name>{1}</name><difficult>{2}</difficult>
<bndbox><xmin>2</xmin><ymin>1</ymin><xmax>{3}</xmax><ymax>3</ymax></bndbox></object></annotation>"""


@pytest.mark.parametrize(
    ("size", "shortest", "longest", "wanted"),
    [
        ((100, 200), 128, 128, (64, 128)),
        ((200, 100), 128, 128, (128, 64)),
        ((480, 640), 800, 1333, (800, 1066)),  # the reference rounds 1066.7 down
        ((427, 1280), 800, 1333, (445, 1333)),
        ((128, 128), 128, 128, (128, 128)),
    ],
)
def test_images_are_scaled_as_the_reference_scales_them(size, shortest, longest, wanted):
    assert scaled(np.zeros((*size, 3), np.uint8), shortest, longest).shape == (*wanted, 3)


def boxed(width=4, count=1):
    """An image whose left column is white, with boxes of one pixel there."""
    image = np.zeros((2, width, 3), np.uint8)
    image[:, 0] = 255
    boxes = np.tile(np.array([[0, 0, 1, 1]], np.float32), (count, 1))
    return Boxed(image, boxes, np.arange(count, dtype=np.int32), np.zeros(count, bool), "it")


def test_a_batch_is_padded_mirrored_and_holds_no_more_than_it_may():
    config, images = BoxConfig(shortest=2, longest=4), [boxed(), boxed(2)]
    ids = np.array([[0, 1], [1, 2], [-1, 3]])
    plain, mirrored = (data.load(ids, (1,), images, config, 2, flip) for flip in (0.0, 1.0))
    assert plain["size"].tolist() == [[2, 4], [2, 2], [4, 4]]
    assert plain["mask"].tolist() == [True, True, False]
    np.testing.assert_allclose(
        plain["boxes"][:2, 0], [[0.125, 0.25, 0.25, 0.5], [0.25, 0.25, 0.5, 0.5]]
    )
    np.testing.assert_allclose(mirrored["boxes"][:2, 0, 0], [0.875, 0.75])
    assert (plain["image"][1, :, 2:] == 0).all() and (plain["image"][:2, :2, 0] == 255).all()
    assert (mirrored["image"][0, :2, 3] == 255).all() and (mirrored["image"][1, :2, 1] == 255).all()
    assert plain["label"].tolist() == [[0, -1], [0, -1], [-1, -1]]
    crowd = boxed(count=3)._replace(ignored=np.array([False, True, False]))
    assert data.load(ids[:1], (1,), [crowd], config, 2)["label"].tolist() == [[0, 2]]
    ((rows, last),) = list(data.in_order(images, config, 3, 2))
    np.testing.assert_array_equal(last["image"], plain["image"])
    assert [row.image.shape for row in rows] == [(2, 4, 0), (2, 2, 0)]
    with pytest.raises(LabError, match="it has 3 objects, but the batches hold 2: raise batch.ob"):
        data.load(ids[:1], (1,), [boxed(count=3)], config, 2)


def test_corners_become_shares_of_the_image():
    found = to_shares(np.array([[10, 20, 30, 80]], np.float32), (100, 200))
    np.testing.assert_allclose(found, [[0.1, 0.5, 0.1, 0.6]])


def write_stamps(folder: Path) -> None:
    """Four stamps of each class, discs of one colour, and four photographs."""
    for label, parts in enumerate(stamps.CLASSES.values()):
        place = folder / "tuxpaint" / "stamps" / parts[0]
        place.mkdir(parents=True)
        for k in range(4):
            pixels = np.zeros((40, 60, 4), np.uint8)
            rows, columns = np.mgrid[:40, :60]
            inside = ((rows - 20) / 15) ** 2 + ((columns - 30) / 20) ** 2 < 1
            pixels[inside] = (40 * label, 255, 60 * k, 255)
            Image.fromarray(pixels).save(place / f"{k}.png")
    place = folder / "mate" / "nature"
    place.mkdir(parents=True)
    for k in range(4):
        Image.new("RGB", (720, 400), (0, 0, 50 * k)).save(place / f"{k}.jpg")
    opaque = folder / "tuxpaint" / "stamps" / "food" / "opaque.png"
    Image.new("RGBA", (9, 9), "red").save(opaque)  # which has no transparent surround


def test_scenes_are_pure_functions_with_boxes_of_the_pasted_pixels(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_LAB_CACHE", str(tmp_path / "cache"))
    write_stamps(tmp_path)
    config = BoxConfig(path=str(tmp_path), longest=64, shortest=64, scenes=40, held_scenes=9)
    found, again = load_boxes(config), load_boxes(config)
    assert found.fingerprint() == again.fingerprint()
    assert found.fingerprint() != load_boxes(BoxConfig(path=str(tmp_path), scenes=41)).fingerprint()
    assert found.labels == ["animal", "building", "food", "plant", "sign", "vehicle"]
    assert [len(part) for part in (found.train, found.validation, found.test)] == [40, 9, 9]
    assert found.report["train_stamps"] == 12  # and one of each class in the other splits
    for part in (found.validation, found.train):
        for index in (3, 0, 7):
            row = part[index]
            np.testing.assert_array_equal(row.image, part[index].image)
            assert 1 <= len(row.boxes) <= 4 and row.image.shape == (64, 64, 3)
            left, top, right, bottom = row.boxes[-1].astype(int)  # the last lies on top
            assert 0 <= left < right <= 64 and 0 <= top < bottom <= 64
            green = row.image[top:bottom, left:right, 1] > 120
            assert green.any(axis=0)[1:-1].all() and green.any(axis=1)[1:-1].all()
            outside = row.image[..., 1] > 120
            for a, b, c, d in row.boxes.astype(int):
                outside[max(b - 1, 0) : d + 1, max(a - 1, 0) : c + 1] = False
            assert not outside.any()
    assert not np.array_equal(found.train[0].image, found.validation[0].image)


def coco(folder: Path, **changes) -> Path:
    """A file of two images with an object each; `changes` replace entries by "section_number"."""
    for name in "ab":
        Image.new("RGB", (6, 4)).save(folder / f"{name}.png")
    content = {
        "images": [{"id": i, "file_name": f"{n}.png", "height": 4, "width": 6}
                   for i, n in ((5, "a"), (9, "b"))],
        "categories": [{"id": 8, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [
            {"image_id": 9, "category_id": 8, "bbox": [1, 1, 9, 2]},
            {"image_id": 9, "category_id": 2, "bbox": [0, 0, 2, 2], "iscrowd": 1},
            {"image_id": 5, "category_id": 2, "bbox": [3, 2, 0, 1]},
        ],
    }  # fmt: skip
    for name, change in changes.items():
        section, number = name.split("_")
        content[section][int(number)] |= change
    file = folder / "boxes.json"
    file.write_text(json.dumps(content))
    return file


def test_coco_is_read_with_boxes_cut_at_the_image(tmp_path):
    config = BoxConfig(
        source="coco", path=str(coco(tmp_path)), validation_share=0.5, test_share=0.0
    )
    found = load_boxes(config)
    assert found.labels == ["dog", "cat"]
    assert found.report == {"read": 2, "empty_boxes": 1, "train": 1, "validation": 1, "test": 0}
    (row,) = (x for part in (found.train, found.validation) for x in part if x.name == "b.png")
    assert row.boxes.tolist() == [[1, 1, 6, 3], [0, 0, 2, 2]]
    assert row.labels.tolist() == [1, 0] and row.ignored.tolist() == [False, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"annotations_1": {"bbox": [1, 2, "x", 3]}}, r"annotations\[1\]: bbox = "),
        ({"annotations_0": {"bbox": [1, 2, -3, 3]}}, r"annotations\[0\]: bbox = .* is not left"),
        ({"annotations_0": {"bbox": [1, 2, 3]}}, r"annotations\[0\]: bbox = .* is not left"),
        ({"annotations_2": {"image_id": 7}}, r"annotations\[2\]: there is no image with the id 7"),
        ({"annotations_0": {"category_id": 3}}, r"annotations\[0\]: there is no category with"),
        ({"images_1": {"id": 5}}, r"images\[1\]: the id 5 is that of another image"),
        ({"images_0": {"height": "4"}}, r'images\[0\]: height = "4" is not as COCO'),
        ({"images_0": {"file_name": "c.png"}}, r"images\[0\]: .*c.png: no such file; config."),
        ({"images_1": {"width": 7}}, r"images\[1\]: b.png is 6 x 4 pixels upright, not 7 x 4"),
    ],
)  # fmt: skip
def test_a_wrong_entry_of_coco_is_one_line(tmp_path, changes, message):
    file = coco(tmp_path, **changes)
    with pytest.raises(LabError, match=f"^{file}: {message}"):
        load_boxes(BoxConfig(source="coco", path=str(file), validation_share=0.0, test_share=0.0))


def voc(folder: Path) -> Path:
    """Three images in VOC's form, the last one listed for validation."""
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    for name, kind, difficult, right in (
        ("a", "dog", 0, 9),
        ("b", "cat", 1, 4),
        ("c", "dog", 0, 5),
    ):
        Image.new("RGB", (6, 4)).save(folder / "JPEGImages" / f"{name}.png")
        text = XML.format(name, kind, difficult, right)
        (folder / "Annotations" / f"{name}.xml").write_text(text)
    (folder / "ImageSets" / "Main" / "val.txt").write_text("c 1\n")
    return folder


def test_voc_is_read_with_pixels_counted_from_1(tmp_path):
    config = BoxConfig(source="voc", path=str(voc(tmp_path)), test_share=0.0)
    found = load_boxes(config)
    assert found.labels == ["cat", "dog"]
    rows = {row.name: row for row in (*found.train, *found.validation)}
    assert [row.name for row in found.validation] == ["c.png"] and len(found.train) == 2
    assert rows["a.png"].boxes.tolist() == [[1, 0, 6, 3]]
    assert rows["b.png"].boxes.tolist() == [[1, 0, 4, 3]]
    assert rows["b.png"].ignored.tolist() == [True] and rows["c.png"].labels.tolist() == [1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<xmin>2</xmin>", "<xmin>two</xmin>", 'object 0: bndbox/xmin = "two" is no number'),
        ("<xmin>2</xmin>", "", 'object 0: bndbox/xmin = "" is no number'),
        ("<xmax>9</xmax>", "<xmax>0</xmax>", "object 0: its box .* is not xmin, ymin, xmax, ymax"),
        ("<name>dog</name>", "", "object 0 has no name"),
        ("<width>6</width>", "<width>8</width>", "a.png is 6 x 4 pixels upright, not 8 x 4"),
        ("a.png", "q.png", ".*q.png: no such file"),
        ("<annotation>", "<!DOCTYPE x [<!ENTITY y 'z'>]><annotation>", "it defines entities"),
    ],
)
def test_a_wrong_annotation_of_voc_is_one_line(tmp_path, old, new, message):
    file = voc(tmp_path) / "Annotations" / "a.xml"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(LabError, match=f"^{file}: {message}"):
        load_boxes(BoxConfig(source="voc", path=str(tmp_path)))


def test_what_is_not_voc_is_named_by_its_line(tmp_path):
    folder = voc(tmp_path)
    (folder / "ImageSets" / "Main" / "val.txt").write_text("c 1\nz\n")
    with pytest.raises(LabError, match=r"val.txt:2: there is no Annotations/z.xml"):
        load_boxes(BoxConfig(source="voc", path=str(folder)))
    (folder / "Annotations" / "b.xml").write_text("<annotation>\n<size>\n</annotation>")
    with pytest.raises(LabError, match=r"b.xml:3: not valid XML"):
        load_boxes(BoxConfig(source="voc", path=str(folder)))
    with pytest.raises(LabError, match="has no Annotations"):
        load_boxes(BoxConfig(source="voc", path=str(folder / "ImageSets")))


@pytest.mark.skipif(not cached("labelme-examples"), reason="labelme-examples is not fetched")
def test_three_photographs_of_voc_have_their_boxes():
    (folder,) = fetch("labelme-examples").rglob("data_dataset_voc")
    config = BoxConfig(source="voc", path=str(folder), validation_share=0.0, test_share=0.0)
    found = load_boxes(config).train
    assert sorted((row.name, len(row.boxes)) for row in found) == [
        ("2011_000003.jpg", 2), ("2011_000006.jpg", 4), ("2011_000025.jpg", 3),
    ]  # fmt: skip
    assert found[0].image.shape == (338, 500, 3)
    np.testing.assert_allclose(found[0].boxes[0], [190, 106.369, 313, 329.369], atol=1e-3)
