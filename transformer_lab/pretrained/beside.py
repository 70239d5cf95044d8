"""The files beside the weights: the tokenizer's, and how images and sound are prepared."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer_lab import text
from transformer_lab.errors import LabError, read_json
from transformer_lab.models import Finds
from transformer_lab.ops.spectrograms import HOP, RATE, WINDOW
from transformer_lab.pretrained import Pretrained, export, model_type_of
from transformer_lab.pretrained.generation import NO_TOKEN, SPECIAL, SpecialIds
from transformer_lab.pretrained.hub import PIXELS, refuse_taken
from transformer_lab.text import (
    ByteBpeTokenizer,
    HfTokenizer,
    MarianTokenizer,
    T5Tokenizer,
    Tokenizer,
    WordPieceTokenizer,
)
from transformer_lab.text.byte_bpe import MODEL, NUMBERED, PREFIX
from transformer_lab.text.tokenizer import HEADER, SETTINGS, SPECIAL_PIECES

NO_IDS = SpecialIds(NO_TOKEN, NO_TOKEN, NO_TOKEN)


def read_tokenizer(
    model: Pretrained, source: Path, files: Mapping[str, bytes] | None = None
) -> Tokenizer:
    """The tokenizer in `files`, else in those beside the weights; LabError if its ids are not those
    of the model.

    Marian's tokenizer has exactly as many tokens as the model. In other families the embedding may
    have more rows than there are tokens, and the model may lack an end token."""
    exact = model.model_type == "marian"
    names = () if files else MarianTokenizer.file_names if exact else _layout(model, source)
    tokenizer = _load(source, names, files)
    ids = {"pad": tokenizer.pad_id} if exact else {}
    ids["eos"] = tokenizer.eos_id
    if model.kind == "encoder_decoder":
        ids["start"] = tokenizer.bos_id
    ends = model.decode.end_tokens if model.decode else ()
    for name, token in ids.items():
        wanted = getattr(model.special, name)
        free = name == "eos" and not exact and (wanted == NO_TOKEN or token in ends)
        if wanted != token and not free:
            raise _other(source, f"{SPECIAL[name]} = {wanted}", f"tokenizer's is {token}")
    sizes = [model.config.vocab_size, model.config.source_vocab_size if exact else None]
    for size in (size for size in sizes if size is not None):
        if size < tokenizer.vocab_size or exact and size != tokenizer.vocab_size:
            has = f"the model has embeddings of {size} tokens"
            raise _other(source, has, f"tokenizer has {tokenizer.vocab_size}")
    return tokenizer


def _layout(model: Pretrained, source: Path) -> list[str]:
    """The names of the files that may hold the tokenizer of this model."""
    kinds = {"encoder": WordPieceTokenizer, "encoder_decoder": T5Tokenizer}
    older = kinds.get(model.kind, HfTokenizer)
    layouts = (HEADER,), HfTokenizer.foreign_files, older.foreign_files
    if not any(all((source / name).is_file() for name in names) for names in layouts):
        also = " and ".join(older.foreign_files)
        raise LabError(f"{source}: a run needs the tokenizer too, {HEADER} missing (or {also})")
    return [HEADER, *HfTokenizer.file_names, *older.foreign_files]


def _load(source: Path, names: Iterable[str], files: Mapping[str, bytes] | None) -> Tokenizer:
    found = {name: (source / name).read_bytes() for name in names if (source / name).is_file()}
    found |= files or {}
    needed = MarianTokenizer.foreign_files if names and HEADER not in names else ()
    if missing := [name for name in needed if name not in found]:
        raise LabError(f"{source}: a run needs the tokenizer too, {', '.join(missing)} missing")
    try:
        return text.load(found)
    except LabError as error:
        raise LabError(f"{source}: {error}") from None


def _other(source: Path, model: str, tokenizer: str) -> LabError:
    return LabError(f"{source}: {model}, but the {tokenizer}: is it another model's?")


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The tokenizer's files under Hugging Face's names; {} if it has no such layout."""
    files = tokenizer.to_files()
    if isinstance(tokenizer, MarianTokenizer | T5Tokenizer):
        return {name: files[name] for name in tokenizer.file_names if name in files}
    if isinstance(tokenizer, HfTokenizer):
        theirs = {n.removeprefix(PREFIX): c for n, c in files.items() if n.startswith(PREFIX)}
        return {name: content for name, content in theirs.items() if name not in NUMBERED}
    if isinstance(tokenizer, ByteBpeTokenizer):
        roles = zip(("pad", "eos", "bos", "unk"), SPECIAL_PIECES, strict=True)
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
        settings |= {f"{role}_token": piece for role, piece in roles}
        return {HEADER: files[MODEL], SETTINGS: json.dumps(settings, indent=1).encode()}
    return {}


def read_pixels(source: Path) -> dict[str, tuple[float, ...]]:
    """The run's settings `mean` and `std` of the colours, as the files have them; else {}."""
    if not (source / PIXELS).is_file():
        return {}
    pixels = read_json(source / PIXELS)
    named = {"mean": "image_mean", "std": "image_std"}
    return {ours: tuple(pixels.get(name, (0.5,) * 3)) for ours, name in named.items()}


def read_sides(source: Path) -> dict[str, int]:
    """A detector's settings `shortest` and `longest` of images' sides in pixels; else {}."""
    if not (source / PIXELS).is_file():
        return {}
    pixels = read_json(source / PIXELS)
    size = pixels.get("size")
    if isinstance(size, dict):
        found = size.get("shortest_edge"), size.get("longest_edge")
    else:  # files of before 2023
        found = size, pixels.get("max_size")
    if not all(type(side) is int and 0 < side < 100_000 for side in found) or found[0] > found[1]:
        raise LabError(
            f"{source / PIXELS}: size must have a shortest_edge and a longest_edge of at least that"
        )
    return dict(zip(("shortest", "longest"), found, strict=True))


def pixel_files(task: Any) -> dict[str, bytes]:
    """The file that says how images are resized and normalised; {} for tasks without images."""
    form = getattr(task, "normalise", getattr(task, "config", None))
    if not hasattr(form, "mean"):
        return {}
    config, kind = getattr(task.model_config, "image", task.model_config), "ViTImageProcessor"
    size = dict(zip(("height", "width"), config.image_size, strict=True))
    if isinstance(config, Finds):
        sides, kind = task.sections["data"], "DetrImageProcessor"
        size = {"shortest_edge": sides.shortest, "longest_edge": sides.longest}
    settings = {
        "image_processor_type": kind,
        "do_resize": True,
        "size": size,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": form.mean,
        "image_std": form.std,
    }
    return {PIXELS: json.dumps(settings, indent=1).encode()}


def sound_files(config: Any) -> dict[str, bytes]:
    """The file that says how spectrograms are made; {} for models that do not read audio."""
    if not hasattr(config, "bins"):
        return {}
    settings = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": config.bins,
        "sampling_rate": RATE,
        "n_fft": WINDOW,
        "hop_length": HOP,
        "chunk_length": config.frames * HOP // RATE,
        "padding_value": 0.0,
    }
    return {PIXELS: json.dumps(settings, indent=1).encode()}


def export_run(kind: str, task: Any, params: Any, target: str | Path, model_type: str = "") -> str:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files.

    `task` has `model_config`, `tokenizer` or `normalise`, and `sections`, maybe with "decode".
    Returns a line about what was not written, or "".

    Raises: LabError for a model that no family can hold, and for files in the way."""
    tok = getattr(task, "tokenizer", None)
    of_tokenizer = tokenizer_files(tok) if tok else {}
    files = pixel_files(task) | sound_files(task.model_config) | of_tokenizer
    refuse_taken(Path(target), files)
    special = SpecialIds(pad=tok.pad_id, eos=tok.eos_id, start=tok.bos_id) if tok else NO_IDS
    export(
        params,
        task.model_config,
        target,
        special,
        task.sections.get("decode"),
        model_type_of(kind, task.model_config, model_type),
        task.labels,
    )
    for name, content in files.items():
        (Path(target) / name).write_bytes(content)
    if tok and not of_tokenizer:
        return f"the tokenizer was not exported: its kind is {tok.config.kind}, unknown there"
    return ""
