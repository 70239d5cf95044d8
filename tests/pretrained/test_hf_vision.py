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

from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained.check import check, read_arrays
from transformer_lab.pretrained.hub import read_tensors

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
