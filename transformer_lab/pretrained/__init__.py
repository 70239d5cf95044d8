"""Import from and export to Hugging Face model directories.

A file named as the `model_type` of a family defines its `FAMILY`, described in `core.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flax.traverse_util import flatten_dict

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.errors import LabError, fits
from transformer_lab.kinds import kind as kind_of
from transformer_lab.kinds import kinds
from transformer_lab.models import Finds, Pictures, Sees, Texts, Towers
from transformer_lab.pretrained.core import BOTH, LABELLED, Family, label_names, label_settings
from transformer_lab.pretrained.generation import (
    SpecialIds,
    read_generation,
    special_ids,
    write_generation,
)
from transformer_lab.pretrained.hub import HubDirectory, read_directory, write_directory
from transformer_lab.pretrained.hub import local as local
from transformer_lab.pretrained.keys import Settings
from transformer_lab.pretrained.names import export_params, import_params, without_wrappers
from transformer_lab.pretrained.running import RUNNERS

MARK = "FAMILY"  # the name that each family's file defines
LISTED = {"architectures": list[str], "id2label": dict[str, str | int]}


@dataclass(frozen=True)
class Pretrained:
    """A model read from a directory; `config` has the class that `models.family(kind)` gives."""

    model_type: str
    kind: str
    config: Any
    params: dict[str, Any]  # float32 numpy arrays
    decode: DecodeConfig | None  # None: it does not generate
    special: SpecialIds
    labels: tuple[str, ...] = ()  # of a head for classes or tokens
    notes: tuple[str, ...] = ()  # lines about settings that were passed over


def families() -> list[str]:
    """The names (`model_type`) of all families that can be imported and exported."""
    return kinds(__name__, MARK)


def family(model_type: str) -> Family:
    """The record of the family with this `model_type`; LabError if there is none."""
    return kind_of(__name__, MARK, "model_type", model_type).FAMILY


def model_type_of(kind: str, config: Any, wanted: str = "") -> str:
    """The `model_type` of the wanted family, else of the first that can hold the model.

    Raises: LabError with the reason why each family cannot."""
    found = [name for name in families() if kind == family(name).kind]
    if not found:
        raise LabError(f'model.kind = "{kind}" has no Hugging Face layout here')
    if wanted and wanted not in found:
        raise LabError(f'--model_type="{wanted}" is none of {", ".join(found)}')
    if kind == "encoder" and config.types == 1:
        found.sort(key=lambda name: name != "roberta")  # BERT could hold it, but knows two types
    reasons = []
    for name in [wanted] if wanted else found:
        try:
            family(name).writing(config)
        except LabError as error:
            reasons.append(str(error))
        else:
            return name
    raise LabError("; ".join(reasons))


def load(directory: str | Path) -> Pretrained:
    """The model of a directory with its settings. Raises: LabError that says what is wrong."""
    return load_found(read_directory(directory))


def load_found(found: HubDirectory) -> Pretrained:
    """The model of a directory's contents, as `load`, which may come from another format."""
    model_type = found.config.get("model_type")
    if not isinstance(model_type, str):
        raise LabError(f'{found.settings}: "model_type" is missing')
    record = family(model_type)
    tensors, prefix = without_wrappers(found.tensors)
    settings = Settings(found.config, found.settings, tensors)
    for name, hint in LISTED.items():
        if not fits(found.config.get(name), hint | None):
            raise settings.error(name, f"it must be {hint}")
    settings.integer("num_labels", None)
    config, names = record.reading(settings, tensors)
    params = import_params(names, tensors, record.shapes(config), str(found.path))
    notes = [*settings.notes]
    if prefix:
        notes.append(f'{found.path}: "{prefix}" was taken off the names of all tensors')
    decode, labels = None, []
    if RUNNERS[record.kind].generate:
        alone = record.kind == "decoder"
        decode, special = read_generation(found, config.vocab_size, config.max_length, alone, notes)
    else:
        special = special_ids(found.config, record.pad)
        headed = isinstance(config, Pictures | Texts) and config.head in LABELLED
        labels = label_names(settings) if headed or isinstance(config, Finds) else []
    more = decode, special, tuple(labels), tuple(notes)
    return Pretrained(model_type, record.kind, config, params, *more)


def export(
    params: Any,
    config: Any,
    directory: str | Path,
    special: SpecialIds,
    decode: DecodeConfig | None = None,
    model_type: str = "marian",
    labels: Sequence[str] = (),
) -> None:
    """Writes a new directory that `load` and Hugging Face's classes read."""
    record = family(model_type)
    values, names = record.writing(config, special.pad)
    values |= label_settings(labels)
    tensors = export_params(names, params, record.shapes(config))
    alone, generation = record.kind not in BOTH, None
    if RUNNERS[record.kind].generate:
        generation = write_generation(special, decode, config.max_length, alone)
    if not isinstance(config, Sees | Towers):
        # config.json has the special tokens too: some models compute with the padding id.
        values |= write_generation(special, None, config.max_length, alone)
    write_directory(directory, values, tensors, generation)


def describe(model: Pretrained) -> str:
    """One line for the user: the family, its parameters, what it reads and how it generates."""
    count = sum(value.size for value in flatten_dict(model.params).values())
    if isinstance(model.config, Sees):
        reads = f"images of {'x'.join(map(str, model.config.image_size))}"
    else:
        reads = f"up to {model.config.max_length} tokens"
    if model.kind == "two_towers":
        reads += f" and images of {'x'.join(map(str, model.config.image.image_size))}"
    shown = f"{model.model_type}: {count:,} parameters, {reads}"
    if model.decode is None:
        head = model.config.head if isinstance(model.config, Pictures | Texts) else "none"
        return f"{shown}, head {head}"
    search = f"beam {model.decode.beam_size}" if model.decode.beam_size > 1 else "greedy"
    search = "sampling" if model.decode.temperature else search
    return f"{shown}, {search}, at most {model.decode.max_new_tokens} new tokens"
