"""Hugging Face model directories: JSON settings and safetensors weights, read and written."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  numpy learns bfloat16 from it
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from transformer_lab.errors import LabError, check_file, read_json

PIXELS = "preprocessor_config.json"  # how images are read
CONFIG = "config.json"
GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


FETCHED = ["*.json", "*.safetensors", "*.model", "*.spm", "*.txt"]  # of a model in the hub


@dataclass(frozen=True)
class HubDirectory:
    """The contents of a model directory; the tensors keep the types that the file gives them."""

    path: Path
    config: dict[str, Any]
    generation: dict[str, Any] | None  # None: there is no such file
    tensors: dict[str, np.ndarray]

    @property
    def settings(self) -> str:
        """The file of the settings, for messages."""
        return str(self.path / CONFIG if self.path.is_dir() else self.path)


def local(name: str) -> Path:
    """The directory of a model: `name` itself, or the copy of ORG/MODEL from Hugging Face's hub in
    its own cache. Raises: LabError if it is neither there nor can be fetched."""
    if Path(name).is_dir() or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return Path(name)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=FETCHED))
    except Exception as error:  # without the package or the network, or of an unknown name
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error)
        raise LabError(
            f"{name}: no such directory, and as a model's name it cannot be fetched ({reason})"
        ) from error


def read_directory(path: str | Path) -> HubDirectory:
    """Reads the settings and tensors of a model. Raises: LabError that names the faulty file."""
    path = Path(path)
    if not path.is_dir():
        raise LabError(f"{path}: no such directory")
    config = read_json(path / CONFIG)
    generation = read_json(path / GENERATION) if (path / GENERATION).exists() else None
    return HubDirectory(path, config, generation, read_tensors(path))


def read_tensors(directory: Path) -> dict[str, np.ndarray]:
    """The arrays of model.safetensors, or of the shards listed in its index."""
    if (directory / WEIGHTS).exists():
        return _read_safetensors(directory / WEIGHTS)
    if (directory / INDEX).exists():
        return _read_shards(directory / INDEX)
    binaries = sorted(p.name for p in directory.glob("pytorch_model*.bin"))
    hint = f"; convert {binaries[0]} to safetensors, it is not read" if binaries else ""
    raise LabError(f"{directory}: holds neither {WEIGHTS} nor {INDEX}{hint}")


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        with safe_open(check_file(path), framework="numpy") as file:
            return {name: _read_tensor(file, name, path) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise LabError(f"{path}: damaged or not a safetensors file: {error}") from error
    except OSError as error:
        raise LabError(f"{path}: cannot be read: {error}") from error


def _read_tensor(file: Any, name: str, path: Path) -> np.ndarray:
    try:
        return file.get_tensor(name)
    except ValueError as error:  # a tensor with more dimensions than NumPy allows
        raise LabError(f"{path}: {name} cannot be read: {error}") from error
    except (AttributeError, TypeError) as error:  # a type that NumPy lacks
        kind = file.get_slice(name).get_dtype()
        raise LabError(f"{path}: {name} has the type {kind}, which is not supported") from error


def _read_shards(index: Path) -> dict[str, np.ndarray]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(shard, str) and Path(shard).name == shard for shard in weight_map.values()
    ):
        raise LabError(f'{index}: "weight_map" must map tensor names to files beside it')
    tensors = {}
    for shard in sorted(set(weight_map.values())):
        path = index.parent / shard
        found = _read_safetensors(path)
        listed = {name for name, owner in weight_map.items() if owner == shard}
        missing, extra = sorted(listed - found.keys()), sorted(found.keys() - listed)
        if missing or extra:
            raise LabError(
                f"{path}: differs from {index.name}: "
                f"missing {', '.join(missing) or 'none'}; unexpected {', '.join(extra) or 'none'}"
            )
        tensors |= found
    return tensors


def refuse_taken(directory: Path, names: Iterable[str]) -> None:
    """Raises: LabError if the directory already holds a file with one of these names."""
    if taken := [name for name in names if (directory / name).exists()]:
        raise LabError(f"{directory}: holds {taken[0]} already; choose another directory")


def write_directory(
    path: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Writes a new model directory. Raises: LabError if it already holds a model.

    config.json is written last, so that an unfinished directory is not taken for a model."""
    path = Path(path)
    refuse_taken(path, (CONFIG, GENERATION, WEIGHTS, INDEX))
    contiguous = {name: np.asarray(value, order="C") for name, value in sorted(tensors.items())}
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Other readers ask for this mark before they open the file.
        save_file(contiguous, path / WEIGHTS, metadata={"format": "pt"})
        if generation is not None:
            _write_json(path / GENERATION, generation)
        _write_json(path / CONFIG, config)
    except (OSError, SafetensorError) as error:
        raise LabError(f"{path}: cannot be written: {error}") from error


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
