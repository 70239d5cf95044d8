"""Stamps of Tux Paint: drawings and cut-out photographs, with their category as the class."""

from pathlib import Path
from typing import Any

from transformer_lab.data.fetch import folders
from transformer_lab.data.images.sources import FoundImages
from transformer_lab.data.sources.folders import with_classes
from transformer_lab.errors import LabError

PACKAGE = "tuxpaint-stamps-default"
LICENCE = "GPL-2"
LEFT_OUT = "symbols"  # a category of letters, numbers and signs, most of them in two forms
MANY_SIZES = True  # of the images, which take the size of the model


def images(config: Any) -> FoundImages:
    """538 pictures of 15 categories, such as animals, in one split.

    Stamps in the colours of another one that is turned round (`_mirror`) are left out, and so are
    symbols."""
    (place,) = folders(config.path, PACKAGE)
    roots = [root for root in (place, *place.rglob("stamps")) if (root / "animals").is_dir()]
    if not roots:
        raise LabError(f"config.data.path: no stamps of Tux Paint below {place}")
    found = [(file, category_of(file, roots[0])) for file in sorted(roots[0].rglob("*.png"))]
    kept = [(f, name) for f, name in found if name != LEFT_OUT and not f.stem.endswith("_mirror")]
    return with_classes({"train": kept}, roots[0])._replace(licence=LICENCE)


def category_of(file: Path, root: Path) -> str:
    """The folder below the root in which a stamp lies, at any depth."""
    return file.relative_to(root).parts[0]
