"""CLIP and SigLIP directories: the reference's numbers, round trips, and where a text is pooled."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from transformer_lab import pretrained
from transformer_lab.commands import import_hf
from transformer_lab.errors import LabError
from transformer_lab.pretrained.check import check, read_arrays
from transformer_lab.pretrained.hub import read_tensors
from transformer_lab.training import runs

ROOT = Path(__file__).parents[1] / "fixtures" / "towers"
FIXTURES = sorted(path.name for path in ROOT.iterdir() if path.is_dir())
SHARED = Path(__file__).parents[3] / "shared" / "parity" / "clip"
each_fixture = pytest.mark.parametrize("name", FIXTURES)


@each_fixture
def test_vectors_and_logits_equal_the_reference(name):
    model = pretrained.load(ROOT / name)
    model = dataclasses.replace(model, params=jax.tree.map(jnp.asarray, model.params))
    with jax.disable_jit():
        rows = check(model, ROOT / name / "expected.npz")
    assert len(rows) == 3 and all(row.passes(2e-5) for row in rows), rows


def test_a_text_is_pooled_at_the_first_end_token_also_below_a_larger_id():
    arrays = read_arrays(ROOT / "clip" / "expected.npz")
    model = pretrained.load(ROOT / "clip")
    assert "up to 9 tokens and images of 12x12" in pretrained.describe(model)
    assert model.config.text_pool == "eos" and model.config.eos_id == 30
    assert (arrays["input_ids"] > 30).any() and (arrays["input_ids"][2, 1:] == 30).all()


@pytest.mark.skipif(not SHARED.is_dir(), reason="there is no such directory")
def test_a_larger_reference_model_agrees():
    rows = check(pretrained.load(SHARED), SHARED / "expected.npz")
    assert all(row.passes(1e-4) for row in rows), rows


@each_fixture
def test_import_then_export_gives_the_same_file(name, tmp_path):
    model, out = pretrained.load(ROOT / name), tmp_path / "out"
    pretrained.export(model.params, model.config, out, model.special, None, model.model_type)
    theirs, ours = read_tensors(ROOT / name), read_tensors(out)
    assert theirs.keys() == ours.keys()
    for key in theirs:
        assert theirs[key].shape == ours[key].shape and np.array_equal(theirs[key], ours[key])
    assert pretrained.load(out).config == model.config


@each_fixture
def test_the_reference_implementation_reads_our_export(name, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, out = pretrained.load(ROOT / name), tmp_path / "out"
    pretrained.export(model.params, model.config, out, model.special, None, model.model_type)
    kind = json.loads((out / "config.json").read_text())["architectures"][0]
    theirs, report = getattr(transformers, kind).from_pretrained(out, output_loading_info=True)
    assert not any(report.values())
    arrays = read_arrays(ROOT / name / "expected.npz")
    inputs = {k: torch.tensor(arrays[k]) for k in pretrained.family(model.model_type).INPUTS}
    with torch.no_grad():
        found = theirs.eval()(**inputs)
    np.testing.assert_allclose(found["text_embeds"], arrays["text_embeds"], atol=2e-5)
    np.testing.assert_allclose(found["image_embeds"], arrays["image_embeds"], atol=2e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": {"pooling": "mean"}}, "model.pooling"),
        ({"text": {"norm": "rms_norm"}}, "model.norm"),
        ({"text_bias": True}, "model.text_bias"),
    ],
)
def test_what_has_no_place_in_a_clip_model_is_named(change, words, tmp_path):
    model = pretrained.load(ROOT / "clip")
    ((key, value),) = change.items()
    if isinstance(value, dict):
        value = dataclasses.replace(getattr(model.config, key), **value)
    config = dataclasses.replace(model.config, **{key: value})
    with pytest.raises(LabError, match=words):
        pretrained.family("clip").writing(config)


def test_an_unknown_setting_of_a_tower_is_named(tmp_path):
    directory = shutil.copytree(ROOT / "siglip", tmp_path / "copy")
    config = json.loads((directory / "config.json").read_text())
    config["vision_config"]["gating"] = True
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(LabError, match="vision_config: not understood.*gating"):
        pretrained.load(directory)


def test_an_imported_model_becomes_a_run_with_its_own_tokenizer_and_pixels(tmp_path):
    source = shutil.copytree(ROOT / "clip", tmp_path / "source")
    pieces = [*"abcdefghijklmn", *(c + "</w>" for c in "abcdefghijklmno")]
    pieces += ["<|startoftext|>", "<|endoftext|>", "ab</w>"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    (source / "vocab.json").write_text(json.dumps(vocab))
    (source / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    pixels = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
    (source / "preprocessor_config.json").write_text(json.dumps(pixels))
    model = pretrained.load(source)
    import_hf.save_to_workdir(model, source, tmp_path / "run")
    stored = ConfigDict(runs.stored_config(tmp_path / "run"))
    stored.mesh.data, stored.batch.rows = -1, 8
    trainer, params = runs.open_run(stored, tmp_path / "run")
    task = trainer.task
    tokens = task.encode_texts(["AB  c"])["tokens"]
    assert tokens.tolist() == [[29, 31, 16, 30, 30, 30, 30, 30, 30]]
    image = np.random.default_rng(0).integers(0, 255, (1, 12, 12, 3), np.uint8)
    scaled = (image / 255 - pixels["image_mean"]) / pixels["image_std"]
    inputs = {"input_ids": tokens, "pixel_values": scaled.transpose(0, 3, 1, 2)}
    with jax.disable_jit():
        params_here = jax.tree.map(jnp.asarray, model.params)
        want = pretrained.family("clip").outputs(model.config, params_here, inputs)
    found = task.text_vectors(params, ["AB  c"], trainer.place)
    np.testing.assert_allclose(found, want["text_embeds"][0], atol=1e-5)
    found = task.image_vectors(params, image, trainer.place)
    np.testing.assert_allclose(found, want["image_embeds"][0], atol=1e-5)
