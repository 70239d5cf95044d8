"""T5 and BART directories: the reference's numbers, round trips, and what is refused."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors.numpy import load_file, save_file

from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.models.presets.encoder_decoders import BART, T5, T5_1_1
from transformer_lab.pretrained import t5
from transformer_lab.pretrained.check import check, read_arrays
from transformer_lab.pretrained.generation import SpecialIds
from transformer_lab.pretrained.hub import read_tensors

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "encoder_decoders"
NAMES = ["bart", "bart_relu", "bart_summary", "t5", "t5_silu", "t5_untied"]
REFERENCE = Path(os.environ.get("TRANSFORMER_LAB_PARITY", ROOT.parent / "shared" / "parity"))
SPECIAL = SpecialIds(pad=0, eos=1, start=0)
SIZES = {"layers": 2, "width": 12, "heads": 3, "head_dim": 4, "feed_forward_width": 10}
SIZES |= {"vocab_size": 17, "max_length": 9}


def load(name):
    return pretrained.load(FIXTURES / name)


def copy_with(name, tmp_path, **changes):
    """A copy of a directory with other keys in config.json; None removes one."""
    shutil.copytree(FIXTURES / name, tmp_path / "copy")
    path = tmp_path / "copy" / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: v for key, v in config.items() if v is not None}))
    return tmp_path / "copy"


def random_params(config):
    rng = np.random.default_rng(0)
    shapes = t5.shapes(config).items()
    flat = {path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes}
    return unflatten_dict(flat, sep="/")


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_searches_equal_the_reference(name):
    rows = check(load(name), FIXTURES / name / "expected.npz")
    assert [row.name for row in rows] == ["logits", "attention_layer0", "greedy", "beam4"]
    assert all(row.passes(1e-4) for row in rows), rows


@pytest.mark.skipif(not (REFERENCE / "t5").is_dir(), reason="no reference checkpoints here")
def test_the_reference_checkpoint_agrees():
    rows = check(pretrained.load(REFERENCE / "t5"), REFERENCE / "t5" / "expected.npz")
    assert all(row.passes(1e-4) for row in rows) and len(rows) == 3, rows


def test_the_settings_are_those_of_the_files():
    t5_, untied, silu, bart = (load(n) for n in ("t5", "t5_untied", "t5_silu", "bart"))
    assert (t5_.config.tie_head, t5_.config.scale_output, t5_.config.activation) == (
        True, True, "relu",
    )  # fmt: skip
    assert (untied.config.tie_head, untied.config.scale_output) == (False, False)
    assert (silu.config.tie_head, silu.config.scale_output) == (True, False)
    assert (untied.config.activation, silu.config.activation) == ("geglu_tanh", "swiglu")
    assert (untied.config.relative_buckets, untied.config.relative_max_distance) == (6, 9)
    assert (t5_.config.heads * t5_.config.head_dim, t5_.config.width) == (18, 16)
    assert t5_.special == SpecialIds(pad=0, eos=1, start=0)
    assert (bart.decode.first_token, bart.decode.force_eos) == (0, True)
    assert bart.config.embedding_scale and bart.config.head_bias and bart.config.embedding_norm
    assert load("bart_relu").decode.first_token is None


@pytest.mark.parametrize("name", NAMES)
def test_import_then_export_gives_the_same_file(name, tmp_path):
    model = load(name)
    arguments = model.special, model.decode, model.model_type
    pretrained.export(model.params, model.config, tmp_path / "out", *arguments)
    theirs, ours = read_tensors(FIXTURES / name), read_tensors(tmp_path / "out")
    spare = {key for key in theirs if "embed_positions" in key}  # two rows that nothing reads
    assert theirs.keys() == ours.keys()
    for key in theirs:
        rows = slice(2, None) if key in spare else slice(None)
        np.testing.assert_array_equal(theirs[key][rows], ours[key][rows])
    again = pretrained.load(tmp_path / "out")
    assert (again.config, again.decode, again.special) == (
        model.config, model.decode, model.special,
    )  # fmt: skip


def test_t5_scales_its_output_by_the_width_only_when_the_head_is_tied(tmp_path):
    """Whatever wrote the file: older writers have one key for both."""
    keys = {"scale_decoder_outputs": None, "dense_act_fn": None, "is_gated_act": None}
    assert pretrained.load(copy_with("t5", tmp_path / "a", **keys)).config.scale_output
    old = copy_with("t5_untied", tmp_path / "b", **keys, tie_word_embeddings=False)
    assert not pretrained.load(old).config.scale_output
    assert not pretrained.load(old).config.tie_head
    multilingual = copy_with(
        "t5_silu", tmp_path / "c", model_type="mt5", scale_decoder_outputs=True
    )
    assert not pretrained.load(multilingual).config.scale_output


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("t5", replace(T5, **SIZES | {"head_dim": 5, "decoder_layers": 1})),
        ("t5", replace(T5_1_1, **SIZES, relative_buckets=10, activation="reglu")),
        ("bart", replace(BART, **SIZES, decoder_heads=2, decoder_head_dim=6, head_bias=True)),
        ("bart", replace(BART, **SIZES, tie_head=False, tie_source_target=False)),
    ],
)
def test_export_then_import_gives_the_same_model(model_type, config, tmp_path):
    params = random_params(config)
    pretrained.export(params, config, tmp_path / "out", SPECIAL, None, model_type)
    model = pretrained.load(tmp_path / "out")
    found, want = flatten_dict(model.params, sep="/"), flatten_dict(params, sep="/")
    assert found.keys() == want.keys()
    assert all(np.array_equal(found[path], want[path]) for path in want)
    unlike = {"kernel_init": config.kernel_init, "max_length": config.max_length}
    assert replace(model.config, **unlike).decoder == config.decoder
    assert (model.config.tie_head, model.config.scale_output) == (
        config.tie_head, config.scale_output,
    )  # fmt: skip


@pytest.mark.parametrize("tie_head", [True, False])
def test_scaled_embeddings_of_a_run_become_t5s_without_changing_a_logit(tie_head, tmp_path):
    config = replace(
        T5, **SIZES, embedding_scale=True, scale_output=False, tie_head=tie_head, init_std=0.02
    )
    params = random_params(config)
    pretrained.export(params, config, tmp_path / "out", SPECIAL, None, "t5")
    model = pretrained.load(tmp_path / "out")
    assert not model.config.embedding_scale and model.config.scale_output == tie_head
    ids = np.arange(2, 10).reshape(2, 4)
    inputs = {"input_ids": ids, "decoder_input_ids": ids[:, ::-1]}
    want = t5.outputs(config, params, inputs)["logits"][0]
    found = t5.outputs(model.config, model.params, inputs)["logits"][0]
    np.testing.assert_allclose(found, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize(
    ("model_type", "changes", "named"),
    [
        ("t5", {"norm": "layer_norm"}, "model.norm = 'layer_norm' has no place in a t5 model"),
        ("t5", {"positions": "sinusoidal"}, "model.positions = 'sinusoidal'"),
        ("t5", {"scale_attention": True}, "model.scale_attention = True"),
        ("t5", {"head_bias": True}, "model.head_bias = True"),
        ("t5", {"decoder_heads": 2}, "model.decoder_heads = 2"),
        ("t5", {"embedding_scale": True}, "model.embedding_scale = True"),  # and the output's
        ("t5", {"norm_bias": True, "norm": "dyt"}, "model.norm = 'dyt'"),
        ("bart", {"positions": "sinusoidal"}, "model.positions = 'sinusoidal'"),
        ("bart", {"norm_place": "pre"}, "model.norm_place = 'pre'"),
        ("bart", {"head_dim": 5}, "3 heads of 5"),
        ("bart", {"embedding_norm": False}, "model.embedding_norm = False"),
        ("bart", {"tie_source_target": False}, "model.tie_source_target = False"),
        ("marian", {}, "model.embedding_norm = True"),
    ],
)
def test_what_they_cannot_hold_is_not_exported(model_type, changes, named, tmp_path):
    config = replace(T5 if model_type == "t5" else BART, **SIZES | changes)
    with pytest.raises(LabError, match=named):
        pretrained.export({}, config, tmp_path / "out", SPECIAL, None, model_type)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("t5", {"feed_forward_proj": "gated-mish"}, 'feed_forward_proj = "gated-mish"'),
        ("t5", {"dense_act_fn": "silu"}, 'dense_act_fn = "silu"'),
        ("t5", {"is_decoder": True}, "is_decoder = true"),
        ("t5", {"architectures": ["T5ForTokenClassification"]}, "architectures"),
        ("t5", {"moe_layers": 2}, "moe_layers = 2"),
        ("t5", {"num_heads": 4}, "has the shape"),
        ("bart", {"normalize_before": True}, "normalize_before = true"),
        ("bart", {"normalize_embedding": False}, "normalize_embedding = false"),
        ("bart", {"encoder_attention_heads": 5}, "encoder_attention_heads = 5"),
    ],
)
def test_a_key_that_changes_the_numbers_is_refused_by_name(name, changes, named, tmp_path):
    with pytest.raises(LabError, match=named):
        pretrained.load(copy_with(name, tmp_path, **changes))


def test_keys_of_the_published_files_are_understood(tmp_path):
    older = {
        "_num_labels": 3, "add_bias_logits": False, "add_final_layer_norm": False,
        "classif_dropout": 0.1, "extra_pos_embeddings": 2, "gradient_checkpointing": False,
        "normalize_before": False, "normalize_embedding": True, "prefix": " ",
        "static_position_embeddings": False, "task_specific_params": {"x": {"num_beams": 4}},
    }  # fmt: skip
    assert pretrained.load(copy_with("bart", tmp_path / "a", **older)).config == load("bart").config
    older = {"n_positions": 64, "output_past": True, "task_specific_params": {}}
    found = pretrained.load(copy_with("t5", tmp_path / "b", **older)).config
    assert found == replace(load("t5").config, max_length=64)


def test_a_head_in_the_file_says_whether_it_is_tied(tmp_path):
    directory = copy_with("t5", tmp_path)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    save_file(
        tensors | {"lm_head.weight": tensors["shared.weight"].copy(), unused: np.ones(2)}, path
    )
    same = jax.tree.map(np.array_equal, pretrained.load(directory).params, load("t5").params)
    assert all(jax.tree.leaves(same))
    save_file(tensors | {"lm_head.weight": tensors["shared.weight"] + 1}, path)
    assert not pretrained.load(directory).config.tie_head
    save_file(tensors | {"encoder.embed_tokens.weight": tensors["shared.weight"] + 1}, path)
    with pytest.raises(LabError, match="encoder.embed_tokens.weight is tied to shared.weight but"):
        pretrained.load(directory)


def test_the_reference_files_hold_texts_that_end_early_and_forced_tokens():
    for name in NAMES:
        arrays = read_arrays(FIXTURES / name / "expected.npz")
        eos = load(name).special.eos
        assert any(eos in row[1:-1] for row in [*arrays["greedy"], *arrays["beam4"]])
        assert not np.array_equal(arrays["greedy"], arrays["beam4"])
    arrays = read_arrays(FIXTURES / "bart" / "expected.npz")
    assert (arrays["greedy"][:, 1] == 0).all() and (arrays["beam4"][:, 1] == 0).all()
