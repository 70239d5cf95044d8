"""The directories that the reference implementation wrote, and what tests do with them."""

import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from safetensors.numpy import load_file, save_file

from transformer_lab import pretrained

ROOT = Path(__file__).parents[1] / "fixtures"
FOLDERS = ("decoders", "encoders", "encoder_decoders", "speech", "vision", "towers")
DIRECTORIES = {
    path.name: path
    for paths in [ROOT.glob("marian_*"), *((ROOT / folder).iterdir() for folder in FOLDERS)]
    for path in sorted(paths)
    if path.is_dir()
}
# Larger models with the reference's outputs, which are not part of the package.
PARITY = Path(os.environ.get("TRANSFORMER_LAB_PARITY", ROOT.parents[2] / "shared" / "parity"))
each_directory = pytest.mark.parametrize("name", DIRECTORIES)


def load(name):
    return pretrained.load(DIRECTORIES[name])


def kind_of(name):
    config = json.loads((DIRECTORIES[name] / "config.json").read_text())
    return pretrained.family(config["model_type"]).kind


def same_trees(a, b):
    """Whether both hold the same arrays under the same paths."""
    same = jax.tree.structure(a) == jax.tree.structure(b)
    return same and all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


def copy_with(name, tmp_path, drop=(), **changes):
    """A copy of a directory with other keys in config.json; "a.b" is the key b of the object a."""
    target = shutil.copytree(DIRECTORIES[name], tmp_path / "copy")
    config = json.loads((target / "config.json").read_text())
    for key, value in changes.items():
        outer, _, inner = key.rpartition(".")
        (config[outer] if outer else config)[inner] = value
    config = {key: value for key, value in config.items() if key not in drop}
    (target / "config.json").write_text(json.dumps(config))
    return target


def change_tensors(directory, change):
    """Writes what `change` makes of a directory's tensors."""
    path = directory / "model.safetensors"
    save_file(change(load_file(path)), path)


def random_params(model_type, config):
    rng, shapes = np.random.default_rng(0), pretrained.family(model_type).shapes(config)
    flat = {path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}
    return unflatten_dict(flat, sep="/")


def export(model, out):
    """Writes what was loaded as it is."""
    more = model.special, model.decode, model.model_type, model.labels
    pretrained.export(model.params, model.config, out, *more)
