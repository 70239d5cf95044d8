"""The user's images with boxes in COCO's format: a JSON file of images, categories, annotations."""

import math
from pathlib import Path
from typing import Any

from transformer_lab.data.formats.lines import LICENCE, split_files
from transformer_lab.data.images.boxes import FoundBoxes, Listed, clipped
from transformer_lab.data.sources.files import own_path
from transformer_lab.errors import LabError, check_file, fits, read_json, shown

SECTIONS = ("images", "categories", "annotations")
FIELDS = {
    "images": {"id": int, "file_name": str, "height": int, "width": int},
    "categories": {"id": int, "name": str},
    "annotations": {"image_id": int, "category_id": int, "bbox": list[float]},
}


def boxed(config: Any) -> FoundBoxes:
    """One file, or a folder with train.json and perhaps validation.json and test.json.

    Images are named from the folder `config.data.images`, else from that of the JSON file. Classes
    are the categories of all files in the order of their ids. A box is left, top, width and height
    in pixels; what `iscrowd` marks is neither learned nor scored."""
    path = own_path(config, "your JSON file or folder")
    files = split_files(path, (".json",)) if path.is_dir() else {"train": path}
    if "train" not in files:
        raise LabError(f"{path} has no train.json")
    contents = {split: (file, _checked(file)) for split, file in files.items()}
    names: dict[int, str] = {}
    for file, content in contents.values():
        for i, row in enumerate(content["categories"]):
            if names.setdefault(row["id"], row["name"]) != row["name"]:
                raise LabError(
                    f'{file}: categories[{i}]: the id {row["id"]} is "{row["name"]}" here and '
                    f'"{names[row["id"]]}" elsewhere'
                )
    numbers = {identity: i for i, identity in enumerate(sorted(names))}
    report = {"empty_boxes": 0}
    parts = {
        split: _rows(file, content, numbers, Path(config.images or file.parent), report)
        for split, (file, content) in contents.items()
    }
    return FoundBoxes(parts, [names[i] for i in numbers], LICENCE, report=report)


def _checked(file: Path) -> dict[str, list]:
    """The content of a file. Raises: LabError that names the entry which is not as it must be."""
    content = read_json(file)
    for section in SECTIONS:
        if not isinstance(rows := content.get(section), list):
            raise LabError(f'{file}: "{section}" must be a list, as in COCO\'s format')
        for i, row in enumerate(rows):
            where = f"{file}: {section}[{i}]"
            if not isinstance(row, dict):
                raise LabError(f"{where}: {shown(row)} is no object")
            for name, kind in FIELDS[section].items():
                if not fits(row.get(name), kind):
                    raise LabError(f"{where}: {name} = {shown(row.get(name))} is not as COCO's")
    return content


def _rows(
    file: Path, content: dict[str, list], numbers: dict[int, int], folder: Path, report: dict
) -> list[Listed]:
    """The images of a file with their boxes, in the file's order."""
    found: dict[int, list] = {}
    for i, row in enumerate(content["images"]):
        if row["id"] in found:
            raise LabError(f"{file}: images[{i}]: the id {row['id']} is that of another image")
        where = f"{file}: images[{i}]"
        found[row["id"]] = [where, row, [], [], []]
    for i, row in enumerate(content["annotations"]):
        where = f"{file}: annotations[{i}]"
        if row["image_id"] not in found:
            raise LabError(f"{where}: there is no image with the id {row['image_id']}")
        if row["category_id"] not in numbers:
            raise LabError(f"{where}: there is no category with the id {row['category_id']}")
        _, image, boxes, labels, ignored = found[row["image_id"]]
        left, top, width, height = row["bbox"] if len(row["bbox"]) == 4 else [math.nan] * 4
        box = clipped([left, top, left + width, top + height], image["height"], image["width"])
        if box is None:
            raise LabError(f"{where}: bbox = {shown(row['bbox'])} is not left, top, width, height")
        if box[0] >= box[2] or box[1] >= box[3]:
            report["empty_boxes"] += 1
            continue
        boxes.append(box)
        labels.append(numbers[row["category_id"]])
        ignored.append(bool(row.get("iscrowd")))
    listed = []
    for where, image, boxes, labels, ignored in found.values():
        path = folder / image["file_name"]
        try:
            check_file(path)
        except LabError as error:
            raise LabError(f"{where}: {error}; config.data.images names the folder") from error
        size = image["height"], image["width"]
        listed.append(Listed.of(path, size, boxes, labels, ignored, where))
    return listed
