"""The user's images with boxes in Pascal VOC's format: an XML file for each image."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, NamedTuple

from transformer_lab.data.formats.lines import LICENCE, lines, split_of, visible
from transformer_lab.data.images.boxes import FoundBoxes, Listed, clipped
from transformer_lab.data.sources.files import own_path
from transformer_lab.data.splits import SPLITS
from transformer_lab.errors import LabError, check_file

SIDES = ("xmin", "ymin", "xmax", "ymax")


class Entry(NamedTuple):
    """What an XML file says; classes are still names."""

    file: Path
    image: Path
    size: tuple[int, int]
    boxes: list[list[float]]
    names: list[str]
    difficult: list[bool]


def boxed(config: Any) -> FoundBoxes:
    """A folder with Annotations/NAME.xml and JPEGImages, and perhaps lists of names in
    ImageSets/Main/train.txt, val.txt and test.txt. Classes are sorted by name; objects marked as
    difficult are neither learned nor scored.

    VOC counts pixels from 1, so that xmin is 1 more than a box's left edge."""
    folder = own_path(config, "your folder of VOC's form")
    files = visible(folder / "Annotations", "*.xml")
    if not files:
        raise LabError(f"{folder} has no Annotations/*.xml")
    report = {"empty_boxes": 0}
    entries = {file.stem: _read(file, folder, report) for file in files}
    names = sorted({name for entry in entries.values() for name in entry.names})
    numbers = {name: i for i, name in enumerate(names)}
    lists = {split_of(path.stem): path for path in visible(folder / "ImageSets/Main", "*.txt")}
    parts = {split: _listed(lists[split], entries) for split in SPLITS if split in lists}
    if "train" not in parts:
        held = {stem for some in parts.values() for stem in some}
        parts["train"] = [stem for stem in entries if stem not in held]
    found = {
        split: [
            Listed.of(
                e.image, e.size, e.boxes, [numbers[n] for n in e.names], e.difficult, str(e.file)
            )
            for e in map(entries.get, stems)
        ]
        for split, stems in parts.items()
    }
    return FoundBoxes(found, names, LICENCE, report=report)


def _listed(file: Path, entries: dict[str, Entry]) -> list[str]:
    """The names in a list of images; VOC's lists may have a number behind each."""
    stems = []
    for number, line in lines(file):
        if line.strip():
            stems.append(line.split()[0])
            if stems[-1] not in entries:
                raise LabError(f"{file}:{number}: there is no Annotations/{stems[-1]}.xml")
    return stems


def _read(file: Path, folder: Path, report: dict[str, int]) -> Entry:
    """An annotation. Raises: LabError that names the file and what it lacks."""
    data = check_file(file).read_bytes()
    try:
        if b"<!ENTITY" in data:  # entities within entities grow without end
            raise LabError(f"{file}: it defines entities, which VOC's format does not have")
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise LabError(f"{file}:{error.position[0]}: not valid XML: {error}") from error
    number = lambda node, path, what: _number(file, node, path, what)  # noqa: E731
    size = tuple(int(number(root, f"size/{side}", "size")) for side in ("height", "width"))
    boxes, names, difficult = [], [], []
    for i, node in enumerate(root.iter("object")):
        what = f"object {i}"
        name = (node.findtext("name") or "").strip()
        if not name:
            raise LabError(f"{file}: {what} has no name")
        sides = [number(node, f"bndbox/{side}", what) for side in SIDES]
        box = clipped([sides[0] - 1, sides[1] - 1, *sides[2:]], *size)
        if box is None:
            raise LabError(f"{file}: {what}: its box {sides} is not xmin, ymin, xmax, ymax")
        if box[0] >= box[2] or box[1] >= box[3]:
            report["empty_boxes"] += 1
            continue
        boxes.append(box)
        names.append(name)
        difficult.append((node.findtext("difficult") or "0").strip() == "1")
    picture = (root.findtext("filename") or "").strip() or f"{file.stem}.jpg"
    path = folder / "JPEGImages" / Path(picture).name
    try:
        check_file(path)
    except LabError as error:
        raise LabError(f"{file}: {error}") from error
    return Entry(file, path, size, boxes, names, difficult)


def _number(file: Path, node: Any, path: str, what: str) -> float:
    """The number in an element. Raises: LabError if it is missing or is no number."""
    text = (node.findtext(path) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e9:
        raise LabError(f'{file}: {what}: {path} = "{text}" is no number')
    return value
