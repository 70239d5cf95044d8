"""Models in and out of Hugging Face directories.

A family is a module of this package, keyed by the `model_type` of its config.json. It has `KIND`
(of `transformer_lab.models`), `reading(settings, tensors)` and `writing(config)`, which return the
other side's config and the name map; `shapes(config)`, of the parameters by path; and for checks
`INPUTS`, `outputs(config, params, inputs)` and `generate(config, params, inputs, decode, special)`.
Encoders and image models generate nothing; they have `PAD`, and `writing` asks for the padding
token too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from flax.traverse_util import flatten_dict

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.errors import LabError, fits
from transformer_lab.kinds import kind as kind_of
from transformer_lab.kinds import kinds
from transformer_lab.pretrained.encoder_settings import (
    LABELLED,
    label_names,
    label_settings,
    special_ids,
)
from transformer_lab.pretrained.generation import SpecialIds, read_generation, write_generation
from transformer_lab.pretrained.hub import CONFIG, read_directory, write_directory
from transformer_lab.pretrained.keys import Settings
from transformer_lab.pretrained.names import export_params, import_params, without_wrappers

MARK = "(def )?reading"  # what every family's file says
LISTED = {"architectures": list[str], "id2label": dict[str, str | int]}
SILENT = ("encoder", "vision", "two_towers")  # kinds that generate nothing


@dataclass(frozen=True)
class Pretrained:
    """A model read from a directory: `config` is that of `models.family(kind)`."""

    model_type: str
    kind: str
    config: Any
    params: dict[str, Any]  # float32 numpy arrays
    decode: DecodeConfig | None  # None: it does not generate
    special: SpecialIds
    labels: tuple[str, ...] = ()  # of a head for classes or tokens
    notes: tuple[str, ...] = ()  # lines about what of the files was passed over


def families() -> list[str]:
    """Every `model_type` that is read and written here."""
    return kinds(__name__, MARK)


def family(model_type: str) -> ModuleType:
    """The module of a `model_type`."""
    return kind_of(__name__, MARK, "model_type", model_type)


def load(directory: str | Path) -> Pretrained:
    """The model, its parameters and its generation settings; LabError names whatever is wrong."""
    found = read_directory(directory)
    model_type = found.config.get("model_type")
    if not isinstance(model_type, str):
        raise LabError(f'{found.path / CONFIG}: "model_type" is missing')
    module = family(model_type)
    tensors, prefix = without_wrappers(found.tensors)
    settings = Settings(found.config, str(found.path / CONFIG), tensors)
    for name, hint in LISTED.items():
        if not fits(found.config.get(name), hint | None):
            raise settings.error(name, f"it must be {hint}")
    settings.integer("num_labels", None)
    config, names = module.reading(settings, tensors)
    params = import_params(names, tensors, module.shapes(config), str(found.path))
    notes = [*settings.notes]
    if prefix:
        notes.append(f'{found.path}: "{prefix}" was taken off the names of all tensors')
    if module.KIND in SILENT:
        head = getattr(config, "head", "none")
        labels = label_names(found.config) if head in LABELLED else ()
        special = special_ids(found.config, module.PAD)
        more = None, special, tuple(labels), tuple(notes)
        return Pretrained(model_type, module.KIND, config, params, *more)
    alone = module.KIND == "decoder"
    sizes = config.vocab_size, config.max_length
    decode, special = read_generation(found, *sizes, alone, notes)
    more = decode, special, (), tuple(notes)
    return Pretrained(model_type, module.KIND, config, params, *more)


def export(
    params: Any,
    config: Any,
    directory: str | Path,
    special: SpecialIds,
    decode: DecodeConfig | None = None,
    model_type: str = "marian",
    labels: Sequence[str] = (),
) -> None:
    """Write a directory that `load` and Hugging Face's own classes read; never over another."""
    module = family(model_type)
    silent = module.KIND in SILENT
    values, names = module.writing(config, special.pad) if silent else module.writing(config)
    values |= label_settings(labels) if labels else {}
    tensors = export_params(names, params, module.shapes(config))
    alone = module.KIND != "encoder_decoder"
    generation = None if silent else write_generation(special, decode, config.max_length, alone)
    if module.KIND not in ("vision", "two_towers"):
        # The special tokens stand in both: a model's own computation uses the padding's.
        values |= write_generation(special, None, config.max_length, alone)
    write_directory(directory, values, tensors, generation)


def describe(model: Pretrained) -> str:
    """One line about what was read."""
    count = sum(value.size for value in flatten_dict(model.params).values())
    reads = f"up to {model.config.max_length} tokens"
    if model.kind == "vision":
        reads = f"images of {'x'.join(map(str, model.config.image_size))}"
    if model.kind == "two_towers":
        reads += f" and images of {'x'.join(map(str, model.config.image.image_size))}"
    shown = f"{model.model_type}: {count:,} parameters, {reads}"
    if model.decode is None:
        return f"{shown}, head {getattr(model.config, 'head', 'none')}"
    search = f"beam {model.decode.beam_size}" if model.decode.beam_size > 1 else "greedy"
    search = "sampling" if model.decode.temperature else search
    return f"{shown}, {search}, at most {model.decode.max_new_tokens} new tokens"
