"""Marian directories: the reference's numbers, and what is refused."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained import marian
from transformer_lab.pretrained.check import check, read_arrays

ROOT = Path(__file__).parents[2]
FIXTURES = sorted((ROOT / "tests" / "fixtures").glob("marian_*"))
SMALL = ROOT / "tests" / "fixtures" / "marian_relu"
each_fixture = pytest.mark.parametrize("directory", FIXTURES, ids=lambda path: path.name)


def same_trees(a, b):
    equal = jax.tree.map(np.array_equal, a, b)  # raises if the structures differ
    return all(jax.tree.leaves(equal))


def copy_with(directory, tmp_path, **changes):
    """A copy of a directory with other keys in config.json; None removes one."""
    target = tmp_path / "copy"
    shutil.copytree(directory, target)
    config = json.loads((target / "config.json").read_text()) | changes
    config = {name: value for name, value in config.items() if value is not None}
    (target / "config.json").write_text(json.dumps(config))
    return target


def change_tensors(directory, change):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def main_outputs(directory, tmp_path):
    """expected.npz with the outputs that every reference file has."""
    names = [*marian.INPUTS, "logits", "greedy", "beam4"]
    arrays = read_arrays(directory / "expected.npz")
    np.savez(tmp_path / "main.npz", **{name: arrays[name] for name in names})
    return tmp_path / "main.npz"


def test_there_are_fixtures():
    assert len(FIXTURES) >= 3


@each_fixture
def test_outputs_equal_the_reference(directory, tmp_path):
    rows = check(pretrained.load(directory), main_outputs(directory, tmp_path))
    assert [row.name for row in rows] == ["logits", "greedy", "beam4"]
    assert all(row.passes(1e-4) for row in rows), rows


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("swish", "silu"), ("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh")]
    + [("gelu", "gelu"), ("quick_gelu", "gelu_quick"), ("relu", "relu")],
)
def test_activation_names(tmp_path, theirs, ours):
    model = pretrained.load(copy_with(SMALL, tmp_path, activation_function=theirs))
    assert model.config.activation == ours


def test_settings_that_change_no_number_in_evaluation_pass(tmp_path):
    directory = copy_with(
        SMALL,
        tmp_path,
        encoder_layerdrop=0.3,
        id2label={"0": "x"},
        torch_dtype="float16",
        add_bias_logits=False,
        normalize_before=False,
        static_position_embeddings=True,
        num_hidden_layers=3,
        max_length=512,
        num_beams=6,
        architectures=None,
    )
    model = pretrained.load(directory)
    assert model.config == pretrained.load(SMALL).config
    assert model.decode.beam_size == 1  # of generation_config.json


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"normalize_before": True}, "normalize_before = true"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm = true"),
        ({"static_position_embeddings": False}, "static_position_embeddings = false"),
        ({"activation_function": "mish"}, 'activation_function = "mish"'),
        ({"rope_theta": 1e4, "alibi": True}, "alibi = true, rope_theta = 10000.0"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = "),
        ({"architectures": ["MarianForCausalLM"]}, "architectures = "),
        ({"num_hidden_layers": 5}, "num_hidden_layers = 5"),
        ({"encoder_attention_heads": 5}, "encoder_attention_heads = 5"),
        ({"d_model": "24"}, 'd_model = "24"'),
        ({"d_model": 0}, "d_model = 0"),
        ({"scale_embedding": 1}, "scale_embedding = 1"),
        ({"decoder_vocab_size": 7}, "decoder_vocab_size = 7"),
        ({"dropout": "much"}, 'dropout = "much"'),
        ({"model_type": "mariam"}, r'"mariam" is unknown \(did you mean "marian"'),
        ({"model_type": None}, '"model_type" is missing'),
        ({"pad_token_id": 61, "eos_token_id": 99}, None),  # generation_config.json has its own
    ],
)
def test_a_key_that_changes_the_numbers_is_refused_by_name(tmp_path, changes, named):
    directory = copy_with(SMALL, tmp_path, **changes)
    if named is None:
        assert pretrained.load(directory).special == pretrained.load(SMALL).special
        return
    with pytest.raises(LabError, match=named):
        pretrained.load(directory)


def test_weights_of_another_size_are_listed(tmp_path):
    directory = copy_with(SMALL, tmp_path, encoder_ffn_dim=50, decoder_layers=2)
    with pytest.raises(LabError) as error:
        pretrained.load(directory)
    text = str(error.value)
    assert "model.encoder.layers.2.fc1.weight has the shape (48, 24), needs (50, 24)" in text
    assert "model.decoder.layers.1.encoder_attn.q_proj.bias" in text and "missing" in text


def test_a_tied_head_in_the_file_must_be_the_embedding(tmp_path):
    directory = copy_with(SMALL, tmp_path)
    head = lambda t: t.update({"lm_head.weight": t["model.shared.weight"].copy()})  # noqa: E731
    change_tensors(directory, head)
    assert same_trees(pretrained.load(directory).params, pretrained.load(SMALL).params)
    change_tensors(directory, lambda t: t["lm_head.weight"].__setitem__((0, 0), 7.0))
    with pytest.raises(LabError, match="lm_head.weight is tied to model.shared.weight but differs"):
        pretrained.load(directory)


def test_position_tables_are_verified_and_others_are_kept_as_learned(tmp_path):
    directory = copy_with(SMALL, tmp_path)
    # (Vaswani 2017, 3.5) with all sines first, in float64.
    angles = np.arange(32)[:, None] * 10_000.0 ** (-np.arange(0, 24, 2) / 24)
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    sides = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    change_tensors(directory, lambda t: t.update({name: table.copy() for name in sides}))
    model = pretrained.load(directory)
    assert model.config.positions == "sinusoidal_halves"
    assert same_trees(model.params, pretrained.load(SMALL).params)
    change_tensors(directory, lambda t: t[sides[1]].__setitem__(5, 0.25))
    model = pretrained.load(directory)
    assert model.config.positions == "learned"
    found = model.params["target_positions"]["embedding"]
    np.testing.assert_array_equal(found[5], np.full(24, 0.25))
    np.testing.assert_array_equal(np.delete(found, 5, 0), np.delete(table, 5, 0))
    change_tensors(directory, lambda t: t.update({sides[0]: table[:9].copy()}))
    with pytest.raises(LabError, match=r"embed_positions.weight has the shape \(9, 24\)"):
        pretrained.load(directory)


def test_half_precision_weights_become_float32(tmp_path):
    directory = copy_with(SMALL, tmp_path)
    change_tensors(directory, lambda t: t.update({k: v.astype(np.float16) for k, v in t.items()}))
    found = pretrained.load(directory).params
    exact = jax.tree.map(lambda x: x.astype(np.float16), pretrained.load(SMALL).params)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype(np.float32)}
    assert same_trees(found, exact)
