"""Decoder-only directories that we write: exact round trips, and what they cannot hold."""

import dataclasses

import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from tests.pretrained.test_hf_decoders import ROOT, each_fixture, same_trees
from transformer_lab import pretrained
from transformer_lab.commands.export_hf import model_type_of
from transformer_lab.errors import LabError
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained import decoders
from transformer_lab.pretrained.check import read_arrays
from transformer_lab.pretrained.generation import SpecialIds
from transformer_lab.pretrained.hub import read_tensors

OFFSET = "model.decoder.embed_positions.weight"


@each_fixture
def test_import_then_export_gives_the_same_file(name, tmp_path):
    model = pretrained.load(ROOT / name)
    out = tmp_path / "out"
    pretrained.export(
        model.params, model.config, out, model.special, model.decode, model.model_type
    )
    theirs, ours = read_tensors(ROOT / name), read_tensors(out)
    assert theirs.keys() == ours.keys()
    for table in (tensors[OFFSET] for tensors in (theirs, ours) if OFFSET in tensors):
        table[:2] = 0.0  # rows that only padding reads
    assert all(np.array_equal(theirs[key], ours[key]) for key in theirs)
    again = pretrained.load(out)
    for field in ("model_type", "config", "special", "decode"):
        assert getattr(again, field) == getattr(model, field)


@each_fixture
def test_the_reference_implementation_reads_our_export(name, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = pretrained.load(ROOT / name)
    pretrained.export(
        model.params, model.config, tmp_path / "out", model.special, model.decode, model.model_type
    )
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report.values())
    arrays = read_arrays(ROOT / name / "expected.npz")
    with torch.no_grad():
        inputs = {key: torch.tensor(arrays[key]) for key in ("input_ids", "attention_mask")}
        logits = theirs.eval()(**inputs).logits.numpy()
    np.testing.assert_allclose(logits, arrays["logits"], atol=1e-5)


def small_config(**changes):
    base = DecoderConfig(
        layers=1, width=8, heads=2, head_dim=4, feed_forward_width=32, vocab_size=11, max_length=12
    )
    return dataclasses.replace(base, **changes)


LLAMA = {"norm": "rms_norm", "activation": "swiglu", "positions": "rope", "attention_bias": False}
LLAMA |= {"feed_forward_bias": False, "kv_heads": 1, "tie_head": False}


@pytest.mark.parametrize(
    ("changes", "model_type"),
    [
        ({}, "gpt2"),
        ({"positions": "alibi", "embedding_norm": True}, "bloom"),
        ({"positions": "rope", "rope_dims": 2, "block": "parallel_two_norms"}, "gpt_neox"),
        (LLAMA, "llama"),
        (LLAMA | {"window": 3}, "mistral"),
        ({"embedding_width": 4, "activation": "relu"}, "opt"),
        ({"vocab_multiple": 8, "tie_head": False}, "gpt2"),
    ],
)
def test_export_then_import_gives_the_same_parameters(tmp_path, changes, model_type):
    config = small_config(**changes)
    assert model_type_of("decoder", config) == model_type
    rng = np.random.default_rng(0)
    shapes = decoders.shapes(config).items()
    params = unflatten_dict(
        {path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes}, sep="/"
    )
    special = SpecialIds(pad=0, eos=1, start=2)
    pretrained.export(params, config, tmp_path / "out", special, model_type=model_type)
    model = pretrained.load(tmp_path / "out")
    assert model.special == special
    for table in ("embedding", "head"):  # rows that only fill the table up are not written
        if table in params:
            params[table]["embedding"] = params[table]["embedding"][:11]
    assert same_trees(model.params, params)


@pytest.mark.parametrize(
    ("changes", "model_type", "named"),
    [
        ({"norm_place": "post"}, "gpt2", "model.norm_place = 'post' has no place in a gpt2 model"),
        ({"mask": "prefix"}, "gpt2", "model.mask = 'prefix'"),
        ({"head_bias": True}, "gpt2", "model.head_bias = True"),
        ({"embedding_scale": True}, "gpt2", "model.embedding_scale = True"),
        ({"kv_heads": 1}, "gpt2", "model.kv_heads = 1"),
        ({"activation": "swiglu"}, "gpt2", 'model.activation = "swiglu"'),
        (LLAMA | {"window": 3}, "llama", "model.window = 3"),
        (LLAMA | {"rope_interleaved": True}, "llama", "model.rope_interleaved = True"),
        (LLAMA | {"rope_attention_factor": 2.0}, "llama", "model.rope_attention_factor = 2.0"),
        (LLAMA | {"activation": "relu"}, "llama", 'model.activation = "relu"'),
        ({"positions": "alibi"}, "bloom", "model.embedding_norm = False"),
        ({"norm_epsilon": 1e-6}, "opt", "model.norm_epsilon = 1e-06"),
        ({"norm": "dyt"}, "", "gpt2 model.* opt model"),
        ({}, "marian", '--model_type="marian" is none of bloom, gpt2'),
    ],
)
def test_what_a_family_cannot_hold_is_not_exported(changes, model_type, named):
    with pytest.raises(LabError, match=named) as error:
        model_type_of("decoder", small_config(**changes), model_type)
    assert "\n" not in str(error.value)
