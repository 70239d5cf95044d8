"""Marian directories that we write: exact round trips, and what they cannot hold."""

import dataclasses
import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from transformer_lab import pretrained
from transformer_lab.commands.export_hf import export
from transformer_lab.errors import LabError
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.pretrained import marian
from transformer_lab.pretrained.check import read_arrays
from transformer_lab.pretrained.generation import SpecialIds
from transformer_lab.pretrained.hub import read_tensors

ROOT = Path(__file__).parents[2]
FIXTURES = sorted((ROOT / "tests" / "fixtures").glob("marian_*"))
REFERENCE = Path(os.environ.get("TRANSFORMER_LAB_PARITY", ROOT.parent / "shared" / "parity"))
SPECIAL = SpecialIds(pad=0, eos=1, start=2)
each_fixture = pytest.mark.parametrize("directory", FIXTURES, ids=lambda path: path.name)


def same_trees(a, b):
    equal = jax.tree.map(np.array_equal, a, b)  # raises if the structures differ
    return all(jax.tree.leaves(equal))


@pytest.mark.skipif(not (REFERENCE / "marian").is_dir(), reason="no reference checkpoints here")
def test_the_reference_checkpoint_is_read_and_written_tensor_for_tensor(tmp_path):
    model = pretrained.load(REFERENCE / "marian")
    export(model.params, model.config, tmp_path / "out", model.special, model.decode)
    theirs, ours = read_tensors(REFERENCE / "marian"), read_tensors(tmp_path / "out")
    assert theirs.keys() == ours.keys()
    assert all(np.array_equal(theirs[name], ours[name]) for name in theirs)
    assert pretrained.load(tmp_path / "out").config == model.config
    assert model.config.activation == "silu" and model.decode.banned_tokens == (96,)


@each_fixture
def test_import_then_export_gives_the_same_file(directory, tmp_path):
    model = pretrained.load(directory)
    export(model.params, model.config, tmp_path / "out", model.special, model.decode)
    theirs, ours = read_tensors(directory), read_tensors(tmp_path / "out")
    assert theirs.keys() == ours.keys()
    assert all(np.array_equal(theirs[name], ours[name]) for name in theirs)
    again = pretrained.load(tmp_path / "out")
    assert (again.config, again.decode, again.special) == (
        model.config,
        model.decode,
        model.special,
    )
    keys = json.loads((directory / "config.json").read_text())
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    sizes = [key for key in keys if key.startswith(("encoder_", "decoder_", "d_model", "vocab"))]
    sizes = [key for key in sizes if "layerdrop" not in key]
    assert {key: written[key] for key in sizes} == {key: keys[key] for key in sizes}


def small_config(**changes):
    base = EncoderDecoderConfig(
        layers=1,
        decoder_layers=2,
        width=8,
        heads=2,
        head_dim=4,
        decoder_heads=4,
        decoder_head_dim=2,
        feed_forward_width=6,
        decoder_feed_forward_width=10,
        norm_epsilon=1e-5,
        positions="sinusoidal_halves",
        vocab_size=11,
        max_length=12,
    )
    return dataclasses.replace(base, **changes)


def random_params(config):
    rng = np.random.default_rng(0)
    leaves = {
        path: rng.normal(size=shape).astype(np.float32)
        for path, shape in marian.shapes(config).items()
    }
    return unflatten_dict(leaves, sep="/")


@pytest.mark.parametrize("tie_head", [True, False])
@pytest.mark.parametrize("tie_source_target", [True, False])
@pytest.mark.parametrize(
    ("head_bias", "positions"), [(True, "sinusoidal_halves"), (False, "learned")]
)
def test_export_then_import_gives_the_same_parameters(
    tmp_path, head_bias, positions, tie_source_target, tie_head
):
    config = small_config(
        head_bias=head_bias,
        tie_source_target=tie_source_target,
        source_vocab_size=None if tie_source_target else 13,
        tie_head=tie_head,
        positions=positions,
        activation="gelu_tanh",
    )
    params = random_params(config)
    export(params, config, tmp_path / "out", SPECIAL)
    model = pretrained.load(tmp_path / "out")
    assert same_trees(model.params, params)
    assert model.special == SPECIAL
    assert model.config == config


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"norm_place": "pre"}, "model.norm_place = 'pre'"),
        ({"norm_epsilon": 1e-6}, "model.norm_epsilon = 1e-06"),
        ({"positions": "sinusoidal"}, 'model.positions = "sinusoidal"'),
        ({"activation": "swiglu"}, 'model.activation = "swiglu"'),
        ({"kv_heads": 1}, "the encoder's 2 heads of 4 with 1"),
        ({"decoder_head_dim": 4}, "the decoder's 4 heads of 4"),
        ({"attention_bias": False}, "model.attention_bias = False"),
    ],
)
def test_what_marian_cannot_hold_is_not_exported(tmp_path, changes, named):
    config = small_config(**changes)
    with pytest.raises(LabError, match=named):
        export({}, config, tmp_path / "out", SPECIAL)
    assert not (tmp_path / "out").exists()


@each_fixture
def test_the_reference_implementation_reads_our_export(directory, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = pretrained.load(directory)
    export(model.params, model.config, tmp_path / "out", model.special, model.decode)
    theirs, report = transformers.MarianMTModel.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report.values())
    arrays = read_arrays(directory / "expected.npz")
    with torch.no_grad():
        inputs = {name: torch.tensor(arrays[name]) for name in marian.INPUTS}
        logits = theirs.eval()(**inputs).logits.numpy()
    np.testing.assert_allclose(logits, arrays["logits"], atol=1e-5)
