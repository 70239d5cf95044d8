"""Decoder-only directories: the reference's numbers, and the files that hold them."""

import json
import shutil
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained import decoders
from transformer_lab.pretrained.check import check, read_arrays

ROOT = Path(__file__).parents[1] / "fixtures" / "decoders"
FIXTURES = sorted(path.name for path in ROOT.iterdir() if path.is_dir())
FAMILIES = ("bloom", "gpt2", "gpt_neox", "llama", "mistral", "opt")
each_fixture = pytest.mark.parametrize("name", FIXTURES)


def same_trees(a, b):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


def copy_with(name, tmp_path, drop=(), **changes):
    """A copy of a directory with other keys in config.json."""
    target = shutil.copytree(ROOT / name, tmp_path / "copy")
    config = json.loads((target / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if key not in drop}
    (target / "config.json").write_text(json.dumps(config))
    return target


def change_tensors(directory, change):
    path = directory / "model.safetensors"
    save_file(change(load_file(path)), path)


def part_of_reference(name, tmp_path, wanted):
    arrays = read_arrays(ROOT / name / "expected.npz")
    np.savez(tmp_path / "part.npz", **{key: arrays[key] for key in (*decoders.INPUTS, *wanted)})
    return tmp_path / "part.npz"


@each_fixture
def test_logits_and_weights_equal_the_reference(name, tmp_path):
    wanted = ["logits", "attention_layer0"]
    rows = check(pretrained.load(ROOT / name), part_of_reference(name, tmp_path, wanted))
    assert [row.name for row in rows] == wanted
    assert all(row.passes(1e-4) for row in rows), rows


@pytest.mark.parametrize("name", FAMILIES)
def test_continuations_equal_the_reference_token_for_token(name, tmp_path):
    wanted = ["greedy", "beam4"] if name == "mistral" else ["greedy"]
    rows = check(pretrained.load(ROOT / name), part_of_reference(name, tmp_path, wanted))
    assert [(row.name, row.difference) for row in rows] == [(key, 0.0) for key in wanted]


def test_padding_on_the_left_changes_no_logit():
    model, arrays = pretrained.load(ROOT / "gpt2"), read_arrays(ROOT / "gpt2" / "expected.npz")
    mask = arrays["attention_mask"]
    by_row = zip(arrays["input_ids"], mask.sum(1), strict=True)
    rolled = [np.roll(row, 11 - count) for row, count in by_row]
    inputs = {"input_ids": np.stack(rolled), "attention_mask": mask[:, ::-1]}
    found, _ = decoders.outputs(model.config, model.params, inputs)["logits"]
    for row, expected, count in zip(found, arrays["logits"], mask.sum(1), strict=True):
        np.testing.assert_allclose(row[11 - count :], expected[:count], atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_weights_become_float32(tmp_path, dtype):
    directory = copy_with("llama", tmp_path)
    change_tensors(directory, lambda t: {key: value.astype(dtype) for key, value in t.items()})
    exact = jax.tree.map(
        lambda x: x.astype(dtype).astype(np.float32), pretrained.load(ROOT / "llama").params
    )
    found = pretrained.load(directory).params
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype(np.float32)}
    assert same_trees(found, exact)


def test_weights_in_several_files_are_joined(tmp_path):
    directory = copy_with("bloom", tmp_path)
    tensors = load_file(directory / "model.safetensors")
    owner = {key: f"model-0000{1 + ('.1.' in key)}-of-00002.safetensors" for key in tensors}
    for shard in set(owner.values()):
        save_file({k: v for k, v in tensors.items() if owner[k] == shard}, directory / shard)
    (directory / "model.safetensors").unlink()
    index = json.dumps({"metadata": {}, "weight_map": owner})
    (directory / "model.safetensors.index.json").write_text(index)
    assert same_trees(pretrained.load(directory).params, pretrained.load(ROOT / "bloom").params)


BUFFERS = {
    "gpt2": ["transformer.h.1.attn.bias", "transformer.h.0.attn.masked_bias"],
    "llama": ["model.layers.1.self_attn.rotary_emb.inv_freq"],
    "gpt_neox": [f"gpt_neox.layers.0.attention.{x}" for x in ("bias", "rotary_emb.inv_freq")],
}


@pytest.mark.parametrize("name", FAMILIES)
def test_files_without_the_prefix_and_with_old_buffers_are_read(tmp_path, name):
    directory = copy_with(name, tmp_path)
    prefix = {"gpt_neox": "gpt_neox.", "llama": "model.", "mistral": "model.", "opt": "model."}
    prefix = prefix.get(name, "transformer.")

    def change(tensors):
        tensors |= {key: np.ones((1, 1, 4, 4), bool) for key in BUFFERS.get(name, ())}
        return {
            {"embed_out.weight": "lm_head.weight"}.get(key, key.removeprefix(prefix)): value
            for key, value in tensors.items()
        }

    change_tensors(directory, change)
    assert same_trees(pretrained.load(directory).params, pretrained.load(ROOT / name).params)


def test_packed_weights_of_another_shape_are_listed(tmp_path):
    directory = copy_with("gpt2", tmp_path)
    name = "transformer.h.1.attn.c_attn.weight"
    change_tensors(directory, lambda t: t | {name: t[name].T.copy(), "h.9.x": t[name]})
    with pytest.raises(LabError) as error:
        pretrained.load(directory)
    assert "unexpected: h.9.x" in str(error.value)
    assert f"{name} has the shape (48, 16), needs (16, 48)" in str(error.value)
