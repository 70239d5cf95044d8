"""The contrastive task: accumulation, texts, determinism, frozen towers, scores, commands."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from flax.traverse_util import flatten_dict

from tests.tasks.test_image_classification import config_of as images_config
from tests.tiny import first_batch, make_trainer, run_alone, start
from tests.tiny_emoji import towers_config, write_emoji
from transformer_lab import cli
from transformer_lab.commands import retrieve, zero_shot
from transformer_lab.errors import LabError
from transformer_lab.tasks.naming import recalls
from transformer_lab.training import runs
from transformer_lab.training.optimizer import path_mask
from transformer_lab.training.state import loss_and_gradient


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_emoji(tmp_path_factory.mktemp("emoji"))


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """A finished run's directory."""
    workdir = tmp_path_factory.mktemp("run")
    run_alone(towers_config(folder, mesh__data=-1), workdir)
    return workdir


def gradient_of(folder, params, parts=1, devices=1, **changes):
    """Loss and gradient on the first batch, in so many micro-batches and on so many devices."""
    trainer = make_trainer(towers_config(folder, mesh__data=devices, **changes), devices)
    batch = trainer.place(first_batch(trainer.task))
    run = jax.jit(
        lambda p, b: loss_and_gradient(
            trainer.task.loss, p, b, jax.random.key(0), parts, trainer.mesh
        )
    )
    pairs, gradient = run(jax.device_get(params), batch)
    return float(pairs["loss"][0] / pairs["loss"][1]), jax.device_get(gradient)


@pytest.fixture(scope="module")
def trainer(folder):
    return make_trainer(towers_config(folder), 1)


@pytest.fixture(scope="module")
def params(trainer):
    return start(trainer).params


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "ways"),
    [("softmax", [(4, 1, "softmax"), (1, 8, "chunked_softmax"), (2, 4, "chunked_softmax")]),
     ("sigmoid", [(2, 1, "sigmoid")])],
)  # fmt: skip
def test_devices_blocks_and_micro_batches_change_nothing(folder, params, loss, ways):
    changes = {"model__bias": -10.0} if loss == "sigmoid" else {}
    params = params | ({"bias": np.float32(-10.0)} if changes else {})
    whole = gradient_of(folder, params, task__loss=loss, **changes)
    for parts, devices, other in ways:
        found = gradient_of(folder, params, parts, devices, task__loss=other, **changes)
        assert found[0] == pytest.approx(whole[0], rel=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 2e-6), found[1], whole[1])


def test_floats_are_not_taken_for_bytes(folder):
    """Divided by 255 once more, they would be all but black."""
    task = make_trainer(towers_config(folder), 1).task
    floats = jnp.asarray(first_batch(task)["image"], jnp.float32) / 255
    with pytest.raises(LabError, match="images of float32 are not the bytes"):
        task.pixels(floats)


RN = {
    "model__image_kind": "cnn", "model__cnn__image_size": (8, 8), "model__cnn__stages": (1,),
    "model__cnn__stem": "small", "model__cnn__width": 4, "model__cnn__pool_heads": 2,
    "model__cnn__pool_width": 6,
}  # fmt: skip


@pytest.mark.slow
def test_a_residual_image_tower_trains_with_its_running_statistics(folder):
    """They are those of the real rows: the mean over micro-batches, as the gradient is."""
    trainer, parted = (
        make_trainer(towers_config(folder, optimizer__name="sgd", micro_batches=n, **RN), 1)
        for n in (1, 4)
    )
    batch, begun = first_batch(trainer.task), jax.device_get(start(trainer))
    whole, parts = (
        jax.device_get(one.train_step(begun, one.place(batch))[0].params["batch_stats"]["image"])
        for one in (trainer, parted)
    )
    params = begun.params
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), params["batch_stats"]["image"], whole)
    assert all(jax.tree.leaves(moved)) and "stem" in moved
    real = batch["tokens_mask"][:, 0]
    pixels = trainer.task.pixels(jnp.asarray(batch["image"][real]))
    kernel = params["image"]["stem"]["conv"]["kernel"]
    out = jax.lax.conv_general_dilated(
        pixels, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    momentum = trainer.task.model_config.cnn.momentum
    want = (1 - momentum) * out.mean(axis=(0, 1, 2))
    for found in (whole, parts):
        np.testing.assert_allclose(found["stem"]["norm"]["mean"], want, atol=1e-5)


def test_case_49_texts_keep_their_end_when_cut_or_empty(trainer):
    task = trainer.task
    long, empty = "red ball " * 20, ""
    found = task.encode_texts([long, empty, "red ball"])
    tok = task.tokenizer
    assert found["tokens"].shape == (3, 8)
    assert found["tokens"][0, 0] == tok.bos_id and found["tokens"][0, -1] == tok.eos_id
    assert tok.eos_id not in found["tokens"][0, :-1]
    assert found["tokens"][1].tolist() == [tok.bos_id, tok.eos_id] + [tok.pad_id] * 6
    assert found["tokens_mask"].sum(axis=1).tolist() == [8, 2, 4]
    assert task.model_config.eos_id == tok.eos_id


def test_an_images_caption_is_its_own(folder):
    task = make_trainer(towers_config(folder, task__strength=0.0, batch__length=16), 1).task
    batch = first_batch(task)
    real = batch["tokens_mask"][:, 0]
    assert real.sum() == 12 and not batch["image"][~real].any()
    shades = {"red": 0, "rouge": 0, "green": 1, "vert": 1, "blue": 2, "bleu": 2}
    checked = 0
    for image, ids in zip(batch["image"][real], batch["tokens"][real], strict=True):
        said = {
            shades[w] for w in task.tokenizer.decode(ids).replace(",", " ").split() if w in shades
        }
        inked = image[(image < 250).any(axis=-1)].astype(float).mean(axis=0)
        for channel in said:
            assert inked.argmax() == channel
            checked += 1
    assert checked >= 3


def test_case_11_the_scale_is_not_decayed(trainer, params):
    mask = path_mask(params, trainer.config.optimizer.weight_decay_pattern)
    assert mask["scale"] is False and mask["image_projection"]["kernel"] is True


def test_case_11_a_run_restored_above_the_bound_computes_with_100(trainer, params):
    larger = {**params, "scale": jnp.float32(9.0)}
    heat = trainer.task.apply(larger, method="temperature")
    assert float(heat["scale"]) == pytest.approx(100.0, rel=1e-6)


@pytest.mark.slow
def test_lit_takes_the_image_tower_of_a_classifier_and_leaves_it_as_it_was(folder, tmp_path):
    """Zhai 2022: with its sizes and its normalisation; nothing of it has optimizer state, and only
    what the pattern names trains."""
    vit = images_config(steps=2, data__channels=3, mesh__data=-1, model__layers=2)
    run_alone(vit, tmp_path / "vit")
    lit = {"adapt__method": "head", "adapt__train": r"^(text|scale)", "model_from_init": True}
    config = towers_config(folder, mesh__data=-1, **lit)
    config.model.projection = None
    for _ in range(2):  # the second one resumes a finished run
        runs.run(config, tmp_path / "lit", str(tmp_path / "vit"), init_into="image")
    opened = lambda d: runs.open_run(runs.ConfigDict(runs.stored_config(d)), d)  # noqa: E731
    first, base = opened(tmp_path / "vit")
    trainer, params = opened(tmp_path / "lit")
    tower, base = (flatten_dict(jax.device_get(x), sep="/") for x in (params["image"], base))
    assert base.keys() - tower.keys() == {"classifier/kernel", "classifier/bias"}
    for path, leaf in tower.items():
        np.testing.assert_array_equal(leaf, base[path], err_msg=path)
    assert trainer.task.model_config.image.layers == 2 and params["text_projection"][
        "kernel"
    ].shape == (16, 32)
    assert trainer.task.config.mean == tuple(first.task.normalise.mean) != (0.5,) * 3
    state = trainer.abstract_state
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(state.opt_state)]
    assert any("text" in path for path in paths) and not any("image" in path for path in paths)
    assert set(state.frozen) == {"image"}
    begun = start(trainer).params
    assert begun.keys() == params.keys() - {"image"} == {"text", "text_projection", "scale"}
    for path, leaf in flatten_dict(begun, sep="/").items():
        assert not np.array_equal(leaf, flatten_dict(params, sep="/")[path]), path


def test_scores_name_held_out_concepts_and_the_other_artist(trained):
    lines = (trained / "metrics.jsonl").read_text().splitlines()
    found = {k: v for line in lines for k, v in json.loads(line).items()}
    assert found["test/num_examples"] == 4
    for name in ("zero_shot_top5", "image_to_text_recall_5", "text_to_image_recall_10"):
        assert found[f"test/{name}"] == 1.0  # of 4
    assert 0 <= found["test/other_artist_top1"] <= found["test/other_artist_top5"] <= 1
    assert {"test/zero_shot_top1", "test/category_top1", "test/described_top1"} <= found.keys()


def test_recalls_count_ranks_and_ties_are_no_hits():
    near = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    found = recalls("r", near, np.array([0, 1, 2]), (1, 2, 3))
    assert found == {"r1": 1 / 3, "r2": 2 / 3, "r3": 1.0}


def test_class_vectors_are_means_of_their_prompts(trainer, params):
    task = trainer.task
    texts = ["red ball", "blue box", "grey bar"]
    each = task.text_vectors(params, texts, trainer.place)
    found = task.class_vectors(params, [texts[:2], texts[2:]], trainer.place)
    mean = each[:2].mean(axis=0)
    np.testing.assert_allclose(found[0], mean / np.linalg.norm(mean), atol=1e-6)
    np.testing.assert_allclose(found[1], each[2], atol=1e-6)
    chances = task.probabilities(params, each, each)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0, atol=1e-6)
    assert (chances.argmax(axis=1) == np.arange(3)).all()


def test_padding_rows_and_their_number_change_no_metric(folder, trainer, params):
    wide = make_trainer(towers_config(folder, batch__rows=32), 1)
    found = [t.evaluate(params, "test") for t in (trainer, wide)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.slow
def test_zero_shot_and_retrieve_read_a_run(folder, trained, tmp_path, monkeypatch, capsys):
    config = runs.ConfigDict(runs.stored_config(trained))
    images = sorted((folder / "emoji-datasource-twitter" / "img" / "twitter" / "64").iterdir())
    words = {"average": 0, "templates": "{}|a picture of {}", "json": True, "count": 5,
             "labels": ["red ball", "blue box"], "images": str(tmp_path), "query": "a red ball",
             "target": str(tmp_path / "sheet.png"), "init_from": ""}  # fmt: skip
    monkeypatch.setattr(flags, "FLAGS", SimpleNamespace(**words))
    monkeypatch.setattr(cli, "get_config", lambda: config)
    monkeypatch.setattr(cli, "get_workdir", lambda: trained)
    zero_shot.main([str(path) for path in images[:2]])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["image"] for row in rows] == [str(path) for path in images[:2]]
    for row in rows:
        assert row["probabilities"].keys() == {"red ball", "blue box"}
        assert sum(row["probabilities"].values()) == pytest.approx(1.0)
    (tmp_path / "broken.png").write_bytes(b"no image")
    for path in images[:6]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr("sys.stdout.reconfigure", lambda **_: None, raising=False)
    retrieve.main([])
    said = capsys.readouterr()
    near = [float(line.split("\t")[0]) for line in said.out.splitlines()]
    assert len(near) == 5 and near == sorted(near, reverse=True)
    assert "broken.png" in said.out + said.err
    assert (tmp_path / "sheet.png").read_bytes()[1:4] == b"PNG"


def test_captions_that_are_cut_are_counted(folder):
    task = make_trainer(towers_config(folder), 1).task
    texts = [task.tokenizer.encode(text) for text in task.train_texts()]
    for room in (1, max(map(len, texts))):
        task.length = room + 2
        cut = sum(len(ids) > room for ids in texts)
        assert task.report()[1].endswith(
            f"to which {cut} of {len(texts):,} of the training set are cut"
        )
    assert cut == 0
