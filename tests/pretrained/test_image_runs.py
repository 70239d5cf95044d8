"""Directories of models that see as runs, and back."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from tests.pretrained.fixtures import DIRECTORIES, load
from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.models import vision
from transformer_lab.pretrained.beside import export_run
from transformer_lab.pretrained.hub import PIXELS, read_tensors
from transformer_lab.pretrained.running import RUNNERS
from transformer_lab.training import imported, runs


def test_an_imported_model_becomes_a_run_with_its_own_tokenizer_and_pixels(tmp_path):
    source = shutil.copytree(DIRECTORIES["clip"], tmp_path / "source")
    pieces = [*"abcdefghijklmn", *(c + "</w>" for c in "abcdefghijklmno")]
    pieces += ["<|startoftext|>", "<|endoftext|>", "ab</w>"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    (source / "vocab.json").write_text(json.dumps(vocab))
    (source / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    pixels = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
    (source / "preprocessor_config.json").write_text(json.dumps(pixels))
    model = pretrained.load(source)
    imported.save_to_workdir(model, source, tmp_path / "run")
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
        want = RUNNERS["two_towers"].outputs(model.config, params_here, inputs)
    found = task.text_vectors(params, ["AB  c"], trainer.place)
    np.testing.assert_allclose(found, want["text_embeds"][0], atol=1e-5)
    found = task.image_vectors(params, image, trainer.place)
    np.testing.assert_allclose(found, want["image_embeds"][0], atol=1e-5)


def test_a_run_names_images_with_the_labels_of_the_directory_and_gives_it_back(tmp_path):
    source, workdir, out = (tmp_path / name for name in ("hub", "run", "out"))
    shutil.copytree(DIRECTORIES["vit_classes"], source)
    pixels = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
    (source / PIXELS).write_text(json.dumps(pixels))
    model = pretrained.load(source)
    imported.save_to_workdir(model, source, workdir)
    trainer, params = runs.open_run(ConfigDict(runs.stored_config(workdir)), workdir)
    image = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "image.png")
    (found,) = trainer.task.predict(params, [str(tmp_path / "image.png")], trainer.place)
    mean, std = (np.array(values, np.float32) for values in pixels.values())
    normal = jnp.asarray((image / np.float32(255) - mean) / std)[None]
    logits = vision.build(model.config).apply({"params": params}, normal)["logits"]
    assert list(found["probabilities"]) == ["cat", "dog", "owl"]
    chances = np.asarray(jax.nn.softmax(logits[0]))
    np.testing.assert_allclose(list(found["probabilities"].values()), chances, atol=1e-5)
    export_run("vision", trainer.task, params, out)
    again, settings = pretrained.load(out), json.loads((out / PIXELS).read_text())
    assert (again.config, again.labels) == (model.config, model.labels)
    theirs, ours = read_tensors(source), read_tensors(out)
    assert all(np.array_equal(theirs[key], ours[key]) for key in theirs.keys() | ours.keys())
    assert settings["size"] == {"height": 8, "width": 12}
    assert {name: settings[name] for name in pixels} == pixels


def test_a_model_without_classes_is_no_run(tmp_path):
    model = load("vit")
    with pytest.raises(LabError, match="the model has no classes"):
        imported.save_to_workdir(model, DIRECTORIES["vit"], tmp_path / "run")
    assert not (tmp_path / "run").exists()
