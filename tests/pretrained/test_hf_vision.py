"""Image-model directories: the reference's numbers, heads, and round trips."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from transformer_lab import pretrained
from transformer_lab.commands import import_hf
from transformer_lab.commands.export_hf import export_run
from transformer_lab.errors import LabError
from transformer_lab.models import vision
from transformer_lab.pretrained.check import check, read_arrays
from transformer_lab.pretrained.hub import PIXELS, read_tensors
from transformer_lab.training import runs

ROOT = Path(__file__).parents[1] / "fixtures" / "vision"
FIXTURES = sorted(path.name for path in ROOT.iterdir() if path.is_dir())
SHARED = ROOT.parents[3] / "shared" / "parity"
REFERENCE = Path(os.environ.get("TRANSFORMER_LAB_PARITY", SHARED)) / "vit"
each_fixture = pytest.mark.parametrize("name", FIXTURES)


@each_fixture
def test_every_output_equals_the_reference(name):
    model = pretrained.load(ROOT / name)
    model = dataclasses.replace(model, params=jax.tree.map(jnp.asarray, model.params))
    with jax.disable_jit():  # the models are of one size and share their operations
        rows = check(model, ROOT / name / "expected.npz")
    assert len(rows) >= 2 and all(row.passes(2e-5) for row in rows), rows


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="no reference checkpoints here")
def test_the_reference_checkpoint_gives_its_logits():
    rows = check(pretrained.load(REFERENCE), REFERENCE / "expected.npz")
    assert [row.name for row in rows] == ["logits"] and rows[0].passes(1e-5), rows


@each_fixture
def test_import_then_export_gives_the_same_file(name, tmp_path):
    model, out = pretrained.load(ROOT / name), tmp_path / "out"
    pretrained.export(
        model.params, model.config, out, model.special, None, model.model_type, model.labels
    )
    theirs, ours = read_tensors(ROOT / name), read_tensors(out)
    assert theirs.keys() == ours.keys()
    assert all(np.array_equal(theirs[key], ours[key]) for key in theirs)
    again = pretrained.load(out)
    assert (again.config, again.labels) == (model.config, model.labels)


@each_fixture
def test_the_reference_implementation_reads_our_export(name, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, out = pretrained.load(ROOT / name), tmp_path / "out"
    pretrained.export(
        model.params, model.config, out, model.special, None, model.model_type, model.labels
    )
    architecture = json.loads((out / "config.json").read_text())["architectures"][0]
    more = {"add_pooling_layer": False} if name == "vit_no_pooler" else {}
    theirs, report = getattr(transformers, architecture).from_pretrained(
        out, output_loading_info=True, attn_implementation="eager", **more
    )
    assert not any(report.values())
    arrays = read_arrays(ROOT / name / "expected.npz")
    with torch.no_grad():
        found = theirs.eval()(pixel_values=torch.tensor(arrays.pop("pixel_values")))
    for key in arrays.keys() - {"attention_layer0"}:
        np.testing.assert_allclose(found[key].numpy(), arrays[key], atol=2e-5)


def test_heads_and_sizes_are_read_as_they_are():
    config = pretrained.load(ROOT / "vit").config
    assert (config.image_size, config.patch_size, config.grid) == ((8, 12), (4, 2), (2, 6))
    assert (config.head, config.pre_logits, config.pre_logits_activation) == ("none", 7, "relu")
    model = pretrained.load(ROOT / "vit_classes")
    assert (model.config.classes, model.labels) == (3, ("cat", "dog", "owl"))
    assert pretrained.load(ROOT / "deit").config.distillation == "token"
    assert pretrained.load(ROOT / "deit_heads").config.distillation == "heads"
    assert pretrained.describe(model).endswith("images of 8x12, head classes")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pooling": "mean"}, "pooling"),
        ({"distillation": "token"}, "distillation"),
        ({"embedding_norm": True}, "embedding_norm"),
        ({"positions": "sincos2d"}, "positions"),
        ({"activation": "swiglu"}, "activation"),
        ({"pre_logits": 4}, "pre_logits"),
    ],
)
def test_a_model_that_their_vit_cannot_hold_is_refused_by_its_setting(changes, words):
    config = dataclasses.replace(pretrained.load(ROOT / "vit_classes").config, **changes)
    with pytest.raises(LabError, match=f"model.{words} .*vit"):
        pretrained.family("vit").writing(config)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_size": [8, 12, 3]}, "image_size"),
        ({"image_size": [9, 12]}, "9x12.*4x2"),
        ({"hidden_act": "gelu_wide"}, "hidden_act"),
        ({"architectures": ["ViTForMaskedImageModeling"]}, "architectures"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_settings_without_a_place_here_are_one_line(tmp_path, changes, words):
    target = shutil.copytree(ROOT / "vit", tmp_path / "copy")
    config = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(config))
    with pytest.raises(LabError, match=words) as info:
        pretrained.load(target)
    assert "\n" not in str(info.value)


def test_a_run_names_images_with_the_labels_of_the_directory_and_gives_it_back(tmp_path):
    source, workdir, out = (tmp_path / name for name in ("hub", "run", "out"))
    shutil.copytree(ROOT / "vit_classes", source)
    pixels = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
    (source / PIXELS).write_text(json.dumps(pixels))
    model = pretrained.load(source)
    import_hf.save_to_workdir(model, source, workdir)
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
    model = pretrained.load(ROOT / "vit")
    with pytest.raises(LabError, match="the model has no classes"):
        import_hf.save_to_workdir(model, ROOT / "vit", tmp_path / "run")
    assert not (tmp_path / "run").exists()
