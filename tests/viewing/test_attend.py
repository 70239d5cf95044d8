"""The attend command: its files hold the model's weights, its mistakes are one line."""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from tests.entry import command
from tests.tasks.test_image_classification import config_of as images_config
from tests.tiny import leave_run, tiny_config
from tests.viewing.test_page import decoded, embedded
from transformer_lab.training import runs
from transformer_lab.viewing.capture import Inputs, capture


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    leave_run(tiny_config(), path)
    return path


def test_the_page_the_picture_and_the_table_are_of_the_runs_weights(workdir, tmp_path):
    page, png = tmp_path / "a.html", tmp_path / "a.png"
    done = command(
        "attend", f"--workdir={workdir}", "--text=big moon", "--text_b=moon", "--heads",
        f"--output={page}", f"--png={png}", "--layer=0", "--head=1", "--map=encoder self-attention",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    trainer, params = runs.open_run(ConfigDict(runs.stored_config(workdir)), workdir)
    maps = capture(trainer.task, params, Inputs("big moon", "moon"), trainer.place)
    kinds = embedded(page.read_text(encoding="utf-8"))["maps"]
    assert [kind["name"] for kind in kinds] == list(maps)
    for kind, found in zip(kinds, maps.values(), strict=True):
        assert (kind["rows"], kind["columns"]) == (found.rows, found.columns)
        np.testing.assert_allclose(decoded(kind), found.weights, atol=2e-5)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert done.stdout.decode().count("encoder self-attention") == 2  # its heads


@pytest.mark.slow
def test_an_image_is_shown_with_the_attention_that_its_vit_computes(tmp_path):
    """The file's weights are softmax(q k / sqrt(h)) of its own patches, from the parameters."""
    run, image, page, png = (tmp_path / n for n in ("run", "a.png", "a.html", "b.png"))
    leave_run(images_config(model__pooling="class", model__layers=2), run)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    Image.fromarray(pixels).save(image)
    done = command("attend", f"--workdir={run}", f"--image={image}", f"--output={page}",
                   f"--png={png}")  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    trainer, params = runs.open_run(ConfigDict(runs.stored_config(run)), run)
    (kind,) = embedded(page.read_text(encoding="utf-8"))["maps"]
    layer, heads = jax.device_get(params["encoder"]["layer_0"]), (5, 2, 16)
    mean, std = trainer.task.normalise
    grey = (pixels / 255 - mean[0]) / std[0]
    patches = grey.reshape(2, 4, 2, 4).swapaxes(1, 2).reshape(4, 16)
    x = patches @ params["patch_embedding"]["kernel"] + params["patch_embedding"]["bias"]
    x = np.concatenate([params["class_token"][None], x]) + params["positions"]["embedding"]
    x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-6)
    x = x * layer["attention_norm"]["scale"] + layer["attention_norm"]["bias"]
    read = lambda name: x @ layer["attention"][name]["kernel"] + layer["attention"][name]["bias"]  # noqa: E731
    query, key = read("query").reshape(heads), read("key").reshape(heads)
    want = jax.nn.softmax(np.einsum("tnh,snh->nts", query, key) / 4, axis=-1)
    found = decoded(kind)
    assert found.shape == (2, 2, 5, 5)
    np.testing.assert_allclose(found[0], want, atol=1e-4)
    drawn = np.asarray(Image.open(png).convert("RGB"))
    # Two layers of two heads, their mean and the rollout: pictures beside each other.
    assert drawn.shape[1] > 1.7 * drawn.shape[0] and len(np.unique(drawn)) > 50


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--text=a"], "say what to make: --output=FILE.html, --png=FILE.png or --heads"),
        (["a", "--heads"], '"a" is no flag: write --NAME=VALUE'),
        (["--text=a", "--png=P", "--head=2"], "--head=2: cross-attention has heads 0 to 1"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(arguments, words, workdir, tmp_path):
    arguments = [a.replace("=P", f"={tmp_path / 'a.png'}") for a in arguments]
    done = command("attend", f"--workdir={workdir}", *arguments)
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode == 2 and words in lines[-1], done.stderr.decode()
    assert not any("Traceback" in line for line in lines) and not list(tmp_path.iterdir())
