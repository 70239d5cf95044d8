"""Training from Python, on a user's data in memory, and released models opened as runs."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from transformer_lab import pretrained
from transformer_lab.errors import LabError, nearest
from transformer_lab.opened import OpenedRun
from transformer_lab.sweeps.experiment import load_module
from transformer_lab.training import runs
from transformer_lab.training.config import flatten, resolve
from transformer_lab.training.imported import as_task
from transformer_lab.training.mesh import placer
from transformer_lab.training.writers import make_workdir


def load_hf(source: str | Path) -> OpenedRun:
    """A Hugging Face directory, or the name ORG/MODEL of one in their hub, opened as a run that
    generates, translates, predicts or embeds as the model can; nothing is written."""
    directory = pretrained.local(str(source))
    model = pretrained.load(directory)
    config, task, mesh = as_task(model, Path(directory))
    return OpenedRun(config, task, model.params, placer(mesh), Path(directory))


def load_config(name: str, changes: Mapping[str, Any] | None = None) -> ConfigDict:
    """The config of a file FILE or FILE:ARGUMENT, or of a shipped one by its bare name, such as
    "smoke"; `changes` are dotted keys."""
    file, colon, argument = name.partition(":")
    module = load_module(file, "configs")
    config = module.get_config(*[argument] * bool(colon))
    _change(config, changes)
    return config


def _change(config: ConfigDict, changes: Mapping[str, Any] | None) -> None:
    try:
        config.update_from_flattened_dict(dict(changes or {}))
    except KeyError as error:
        keys = flatten(config)
        name = next((key for key in changes or {} if key not in keys), str(error))
        raise LabError(f'"{name}" is no key of the config{nearest(name, keys)}') from None


def train(
    config: ConfigDict | str,
    workdir: str | Path,
    data: Any = None,
    changes: Mapping[str, Any] | None = None,
    init_from: str = "",
) -> OpenedRun:
    """Trains the run of a config, or resumes it, and opens it.

    Args:
        config: a config, or the name of its file (see `load_config`).
        workdir: the run's directory.
        data: examples in memory, which WORKDIR/data then holds as files: pairs of texts for
            translation, texts for language models, pairs (text, class) for classification, or
            (images, classes) with uint8 images [n, height, width] or [n, height, width, 3].
            Validation and test splits are taken from it as from a user's files.
        changes: dotted keys of the config, such as {"steps": 100}.
        init_from: a run whose weights start this one, or hf:DIR.

    Raises: LabError for a task that takes no data in memory, or data of another form.
    """
    if isinstance(config, str):
        config = load_config(config)
    _change(config, changes)
    workdir = make_workdir(Path(workdir))
    if data is not None:
        section = resolve(config).sections["data"]
        kind = getattr(section, "KIND", "")
        if kind not in WRITERS:
            raise LabError(f"a run of {config.task.kind} takes no data in memory: give it files")
        written = WRITERS[kind](data, section, workdir / "data")
        stated = {key.removeprefix("data.") for key in changes or {}}
        config.data.update({key: x for key, x in written.items() if key not in stated})
    runs.run(config, workdir, init_from)
    return OpenedRun.of(workdir)


def _lines(rows: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "all.jsonl").write_text(text, encoding="utf-8")
    return {"source": "files", "path": str(folder / "all.jsonl")}


def _pairs(data: Any, section: Any, folder: Path) -> dict[str, Any]:
    rows = [_texts(row, "a pair of texts") for row in data]
    most = max(len(rows) // 10, 1)  # a config's held-out splits may be made for a larger set
    sizes = {k: min(getattr(section, k), most) for k in ("validation_size", "test_size")}
    return _lines([dict(zip(section.sides(), row, strict=True)) for row in rows], folder) | sizes


def _documents(data: Any, section: Any, folder: Path) -> dict[str, str]:
    return _lines([{"text": _texts((text,), "a text", 1)[0]} for text in data], folder)


def _labelled(data: Any, section: Any, folder: Path) -> dict[str, str]:
    names = section.text_column, section.label_column
    rows = [_texts((row[0], str(row[1])), "a text and its class") for row in data]
    return _lines([dict(zip(names, row, strict=True)) for row in rows], folder)


def _images(data: Any, section: Any, folder: Path) -> dict[str, str]:
    images, labels = data
    if len(images) != len(labels) or np.asarray(images[0]).dtype != np.uint8:
        raise LabError("data is (images, classes): as many of both, and the images are uint8")
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        file = folder / str(label) / f"{i:07d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(image)).save(file, compress_level=1)
    return {"source": "folders", "path": str(folder)}


def _texts(row: Any, what: str, count: int = 2) -> Sequence[str]:
    if isinstance(row, str) or len(row) != count or not all(isinstance(x, str) for x in row):
        raise LabError(f"data holds {row!r:.60}, which is not {what}")
    return row


Writer = Callable[[Any, Any, Path], dict[str, Any]]
WRITERS: dict[str, Writer] = {
    "pairs": _pairs, "documents": _documents, "labelled": _labelled, "images": _images,
}  # fmt: skip
