"""Tensors of every family as older and newer files have them, and tensors that do not fit."""

import json
from dataclasses import replace

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.pretrained.fixtures import (
    change_tensors,
    copy_with,
    load,
    random_params,
    same_trees,
)
from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.models.presets.encoder_decoders import T5
from transformer_lab.pretrained.generation import SpecialIds
from transformer_lab.pretrained.running import RUNNERS


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama", np.float16), ("llama", ml_dtypes.bfloat16), ("marian_relu", np.float16)],
)
def test_half_precision_weights_become_float32(tmp_path, name, dtype):
    directory = copy_with(name, tmp_path)
    change_tensors(directory, lambda t: {key: value.astype(dtype) for key, value in t.items()})
    exact = jax.tree.map(lambda x: x.astype(dtype).astype(np.float32), load(name).params)
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
    assert same_trees(pretrained.load(directory).params, load("bloom").params)


PREFIXES = {
    "bloom": "transformer.",
    "gpt2": "transformer.",
    "gpt_neox": "gpt_neox.",
    "llama": "model.",
    "mistral": "model.",
    "opt": "model.",
}
BUFFERS = {
    "gpt2": ["transformer.h.1.attn.bias", "transformer.h.0.attn.masked_bias"],
    "llama": ["model.layers.1.self_attn.rotary_emb.inv_freq"],
    "gpt_neox": [f"gpt_neox.layers.0.attention.{x}" for x in ("bias", "rotary_emb.inv_freq")],
}


@pytest.mark.parametrize("name", PREFIXES)
def test_files_without_the_prefix_and_with_old_buffers_are_read(tmp_path, name):
    directory = copy_with(name, tmp_path)
    heads = {"embed_out.weight": "lm_head.weight"}

    def change(tensors):
        tensors |= {key: np.ones((1, 1, 4, 4), bool) for key in BUFFERS.get(name, ())}
        return {heads.get(k, k.removeprefix(PREFIXES[name])): v for k, v in tensors.items()}

    change_tensors(directory, change)
    assert same_trees(pretrained.load(directory).params, load(name).params)


def old_names(tensors):
    """As the first files had them: every name spelt otherwise, buffers, the tied layer."""
    for key in [key for key in tensors if "LayerNorm" in key]:
        old = key.replace("LayerNorm.weight", "LayerNorm.gamma")
        tensors[old.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(key)
    word = next(tensors[key] for key in tensors if "word_embeddings" in key)
    tensors["bert.embeddings.position_ids"] = np.arange(16)[None]
    if "cls.predictions.bias" in tensors:
        tensors["cls.predictions.decoder.weight"] = word.copy()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()
        tensors["cls.seq_relationship.weight"] = np.ones((2, 12), np.float32)
    return tensors


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("name", ["bert", "bert_mlm", "bert_classes"])
def test_old_names_with_and_without_a_prefix_are_read(tmp_path, name, prefix):
    directory = copy_with(name, tmp_path)

    def change(tensors):
        bare = {key.removeprefix("bert."): value for key, value in old_names(tensors).items()}
        body = ("embeddings", "encoder", "pooler")
        first = "bert." if prefix else ""
        return {(first if k.startswith(body) else "") + k: v for k, v in bare.items()}

    change_tensors(directory, change)
    assert same_trees(pretrained.load(directory).params, load(name).params)


@pytest.mark.parametrize(
    ("name", "tied", "original"),
    [
        ("bert_mlm", "cls.predictions.decoder.weight", ".*word_embeddings.weight"),
        ("roberta_mlm", "lm_head.decoder.weight", ".*word_embeddings.weight"),
        ("distilbert_mlm", "vocab_projector.weight", ".*word_embeddings.weight"),
        ("marian_relu", "lm_head.weight", "model.shared.weight"),
        ("t5", "encoder.embed_tokens.weight", "shared.weight"),
    ],
)
def test_a_tied_table_in_the_file_must_be_the_embedding(tmp_path, name, tied, original):
    directory = copy_with(name, tmp_path)
    words = ("word_embeddings.weight", "shared.weight")
    table = lambda t: next(value for key, value in t.items() if key.endswith(words))  # noqa: E731
    change_tensors(directory, lambda t: t | {tied: table(t).copy()})
    assert same_trees(pretrained.load(directory).params, load(name).params)
    change_tensors(directory, lambda t: t | {tied: t[tied] + 1})
    with pytest.raises(LabError, match=f"{tied} is tied to {original} but differs"):
        pretrained.load(directory)


def test_a_head_in_the_file_says_whether_t5s_is_tied(tmp_path):
    directory, head = copy_with("t5", tmp_path), "lm_head.weight"
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    change_tensors(directory, lambda t: t | {head: t["shared.weight"].copy(), unused: np.ones(2)})
    assert same_trees(pretrained.load(directory).params, load("t5").params)
    change_tensors(directory, lambda t: t | {head: t[head] + 1})
    assert not pretrained.load(directory).config.tie_head


def test_a_pooler_that_the_head_does_not_read_is_kept_or_passed_over(tmp_path):
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(12, 12)), rng.normal(size=12)
    for name, prefix in (("bert_mlm", "bert."), ("roberta_classes", "roberta.")):
        directory = copy_with(name, tmp_path / name)
        pooler = {"weight": kernel.astype(np.float32), "bias": bias.astype(np.float32)}
        pooler = {f"{prefix}pooler.dense.{leaf}": value for leaf, value in pooler.items()}
        change_tensors(directory, lambda t: t | pooler)  # noqa: B023
        found, plain = pretrained.load(directory), load(name)
        if name == "bert_mlm":
            np.testing.assert_allclose(found.params["pooler"]["kernel"], kernel.T, rtol=1e-6)
            assert found.config == replace(plain.config, pooler=True)
        else:
            assert same_trees(found.params, plain.params)


def test_weights_of_another_size_are_listed(tmp_path):
    directory = copy_with("marian_relu", tmp_path / "a", encoder_ffn_dim=50, decoder_layers=2)
    with pytest.raises(LabError) as error:
        pretrained.load(directory)
    text = str(error.value)
    assert "model.encoder.layers.2.fc1.weight has the shape (48, 24), needs (50, 24)" in text
    assert "model.decoder.layers.1.encoder_attn.q_proj.bias" in text and "missing" in text
    directory, name = copy_with("gpt2", tmp_path / "b"), "transformer.h.1.attn.c_attn.weight"
    change_tensors(directory, lambda t: t | {name: t[name].T.copy(), "h.9.x": t[name]})
    with pytest.raises(LabError) as error:
        pretrained.load(directory)
    assert "unexpected: h.9.x" in str(error.value)
    assert f"{name} has the shape (48, 16), needs (16, 48)" in str(error.value)


def test_a_tensor_that_is_nan_throughout_is_named(tmp_path):
    directory = copy_with("gpt2", tmp_path)
    name = sorted(load_file(directory / "model.safetensors"))[0]
    change_tensors(directory, lambda t: t | {name: np.full_like(t[name], np.nan)})
    with pytest.raises(LabError, match=f"{name} is NaN throughout"):
        pretrained.load(directory)


def test_position_tables_are_verified_and_others_are_kept_as_learned(tmp_path):
    directory = copy_with("marian_relu", tmp_path)
    # (Vaswani 2017, 3.5) with all sines first, in float64.
    angles = np.arange(32)[:, None] * 10_000.0 ** (-np.arange(0, 24, 2) / 24)
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    sides = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    change_tensors(directory, lambda t: t | {name: table.copy() for name in sides})
    model = pretrained.load(directory)
    assert model.config.positions == "sinusoidal_halves"
    assert same_trees(model.params, load("marian_relu").params)
    other = table.copy()
    other[5] = 0.25
    change_tensors(directory, lambda t: t | {sides[1]: other})
    model = pretrained.load(directory)
    assert model.config.positions == "learned"
    np.testing.assert_array_equal(model.params["target_positions"]["embedding"], other)
    change_tensors(directory, lambda t: t | {sides[0]: table[:9].copy()})
    with pytest.raises(LabError, match=r"embed_positions.weight has the shape \(9, 24\)"):
        pretrained.load(directory)


@pytest.mark.parametrize("tie_head", [True, False])
def test_scaled_embeddings_of_a_run_become_t5s_without_changing_a_logit(tie_head, tmp_path):
    config = replace(
        T5, layers=2, width=12, heads=3, head_dim=4, feed_forward_width=10, vocab_size=17,
        max_length=9, embedding_scale=True, scale_output=False, tie_head=tie_head, init_std=0.02,
    )  # fmt: skip
    params, special = random_params("t5", config), SpecialIds(pad=0, eos=1, start=0)
    pretrained.export(params, config, tmp_path / "out", special, None, "t5")
    model = pretrained.load(tmp_path / "out")
    assert not model.config.embedding_scale and model.config.scale_output == tie_head
    ids, outputs = np.arange(2, 10).reshape(2, 4), RUNNERS["encoder_decoder"].outputs
    inputs = {"input_ids": ids, "decoder_input_ids": ids[:, ::-1]}
    want = np.asarray(outputs(config, params, inputs)["logits"][0])
    found = outputs(model.config, model.params, inputs)["logits"][0]
    np.testing.assert_allclose(found, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize(
    ("name", "apart", "together"),
    [
        ("mixtral", ("block_sparse_moe", "w1", "w3", "w2"), "mlp"),
        ("jamba", ("feed_forward", "gate_proj", "up_proj", "down_proj"), "feed_forward"),
    ],
)
def test_all_experts_in_one_tensor_are_read_like_those_apart(name, apart, together, tmp_path):
    block, gate, up, down = apart

    def pack(tensors):
        count = 1 + max(int(key.split(".")[5]) for key in tensors if ".experts." in key)
        found = {}
        for key, value in tensors.items():
            layer, _, rest = key.partition(f"{block}.")
            if ".experts." not in key:
                found[f"{layer}{together}.{rest}" if rest else key] = value
                continue
            stem = f"{layer}{block}.experts"
            stack = lambda part: np.stack(  # noqa: E731
                [tensors[f"{stem}.{e}.{part}.weight"] for e in range(count)]  # noqa: B023
            )
            whole = np.concatenate([stack(gate), stack(up)], axis=1)
            found[f"{layer}{together}.experts.gate_up_proj"] = whole
            found[f"{layer}{together}.experts.down_proj"] = stack(down)
        return found

    directory = copy_with(name, tmp_path)
    change_tensors(directory, pack)
    assert same_trees(pretrained.load(directory).params, load(name).params)


def test_a_table_for_each_stack_is_read_where_the_head_is_apart(tmp_path):
    directory, first = copy_with("switch_dense", tmp_path), "encoder.embed_tokens.weight"
    change_tensors(directory, lambda tensors: tensors | {first: tensors[first] + 1})
    model, before = pretrained.load(directory), load("switch_dense")
    assert not model.config.tie_source_target and before.config.tie_source_target
    table, target = (model.params[f"{s}_embedding"]["embedding"] for s in ("source", "target"))
    np.testing.assert_array_equal(target, before.params["target_embedding"]["embedding"])
    np.testing.assert_array_equal(table, target + 1)
