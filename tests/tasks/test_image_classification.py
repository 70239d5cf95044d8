"""Images to classes: what is learnt, counted, kept with a checkpoint and predicted from files."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests import tiny
from tests.tiny import first_batch, make_trainer, start, trained
from transformer_lab.errors import LabError
from transformer_lab.ops.losses import ratio
from transformer_lab.tasks.image_classification import ImageClassification, soft_cross_entropy
from transformer_lab.training.config import resolve
from transformer_lab.training.sources import Source, merge_params, task_from
from transformer_lab.training.state import loss_and_gradient

VISION = {
    "model.patch_size": (4, 4), "model.layers": 1, "model.width": 32, "model.heads": 2,
    "model.head_dim": 16, "model.feed_forward_width": 48, "model.pooling": "mean",
}  # fmt: skip
CNN = {"model.stages": (1, 1), "model.width": 8, "model.stem": "small"}
COMMON = {
    **tiny.FAST, "steps": 60, "data.source": "digits", "batch.rows": 64,
    "optimizer.learning_rate": 5e-3,
}  # fmt: skip


def config_of(model="vision", **changes):
    own = {"vision": VISION, "cnn": CNN}[model]
    return tiny.config_of(model, "image_classification", COMMON, own, **changes)


def trainer_of(model="vision", devices=1, **changes):
    return make_trainer(config_of(model, **changes), devices)


@pytest.fixture(scope="module")
def classifier():
    trainer = trainer_of()
    return trainer, trained(trainer, 60)[0]


def test_a_vision_transformer_learns_the_digits(classifier):
    trainer, params = classifier
    values = trainer.evaluate(params, "test")
    assert values["accuracy"] > 0.7 and values["top_5"] > values["accuracy"]
    cfg = trainer.task.model_config
    assert (cfg.classes, cfg.image_size, cfg.channels) == (10, (8, 8), 1)


def test_the_attention_distance_of_a_layer_is_that_of_its_heads_image_by_image(classifier):
    trainer, params = classifier
    found = trainer.task.score(params, "test", trainer.place, True).values
    batch = next(trainer.task.eval_batches("test"))
    images = trainer.task.normalise(jnp.asarray(batch["image"]))
    _, left = trainer.task.model.apply({"params": params}, images, mutable=["intermediates"])
    weights = np.asarray(left["intermediates"]["encoder"]["layer_0"]["attention"]["weights"][0])
    assert weights.shape == (64, 2, 4, 4)  # four patches, no class token
    apart = [[0, 1, 1, 2**0.5], [1, 0, 2**0.5, 1], [1, 2**0.5, 0, 1], [2**0.5, 1, 1, 0]]
    expected = (weights * apart).sum(axis=-1).mean()
    assert found["attention_distance_0"] == pytest.approx(expected, rel=1e-5)
    assert "attention_distance_1" not in found
    assert (
        "attention_distance_0"
        not in trainer.task.score(params, "test", trainer.place, False).values
    )


@pytest.mark.slow
def test_a_residual_net_learns_them_with_its_running_statistics():
    trainer = trainer_of("cnn", optimizer__learning_rate=1e-2)
    before = start(trainer).params["batch_stats"]
    params, losses = trained(trainer, 60)
    assert losses[-1] < 0.5 * losses[0] and trainer.evaluate(params, "test")["accuracy"] > 0.5
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, params["batch_stats"])
    assert all(jax.tree.leaves(moved))


@pytest.mark.parametrize("rows", [8, 64, 512])
def test_every_example_counts_once_whatever_the_batch(classifier, rows):
    trainer, params = classifier
    other = trainer_of(batch__rows=rows)
    found, expected = other.evaluate(params, "test"), trainer.evaluate(params, "test")
    assert found == pytest.approx(expected, rel=1e-4)
    scores = other.task.score(params, "test", other.place, True)
    assert scores.values["num_examples"] == 179


def test_accuracy_top_5_and_loss_are_those_of_the_logits(classifier):
    trainer, params = classifier
    batches = list(trainer.task.eval_batches("test"))
    logits = np.concatenate(
        [
            np.asarray(trainer.task.apply(params, trainer.place(b))["logits"])[b["mask"]]
            for b in batches
        ]
    ).astype(np.float64)
    labels = np.concatenate([b["label"][b["mask"]] for b in batches])
    order = np.argsort(-logits, axis=1)
    chosen = logits[np.arange(len(labels)), labels]
    expected = {
        "accuracy": (order[:, 0] == labels).mean(),
        "top_5": (order[:, :5] == labels[:, None]).any(axis=1).mean(),
        "loss": (np.log(np.exp(logits).sum(axis=1)) - chosen).mean(),
    }
    assert trainer.evaluate(params, "test") == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_soft_labels_of_one_class_are_that_class(smoothing):
    rng = np.random.default_rng(0)
    logits, label = jnp.asarray(rng.normal(size=(6, 4)), jnp.float32), jnp.arange(6) % 4
    hard = soft_cross_entropy(logits, label, smoothing)
    np.testing.assert_allclose(
        soft_cross_entropy(logits, jax.nn.one_hot(label, 4), smoothing), hard, rtol=1e-5
    )
    shares = rng.dirichlet(np.ones(4), 6)
    target = (1 - smoothing) * shares + smoothing / 4
    expected = -(target * np.asarray(jax.nn.log_softmax(logits))).sum(axis=1)
    found = soft_cross_entropy(logits, jnp.asarray(shares, jnp.float32), smoothing)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("mixup", [0.0, 0.5])
def test_filler_rows_and_micro_batches_change_neither_loss_nor_gradient(mixup):
    trainer = trainer_of(batch__rows=16, augment__mixup=mixup, task__label_smoothing=0.1)
    params = start(trainer).params
    host = first_batch(trainer.task)
    real = {name: value[:12] for name, value in host.items()}
    padded = {name: np.pad(v, [(0, 4)] + [(0, 0)] * (v.ndim - 1)) for name, v in real.items()}
    key = jax.random.key(0)
    whole, parts = (
        jax.jit(lambda p, b, n=n: loss_and_gradient(trainer.task.loss, p, b, key, n, trainer.mesh))(
            params, trainer.place(batch)
        )
        for batch, n in ((real, 1), (padded, 4))
    )
    assert float(ratio(whole[0]["loss"])) == pytest.approx(float(ratio(parts[0]["loss"])), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), whole[1], parts[1])


@pytest.mark.slow
def test_both_heads_of_a_distilled_model_learn():
    trainer = trainer_of(model__pooling="class", model__distillation="heads")
    params = start(trainer).params
    batch = trainer.place(first_batch(trainer.task))
    key = jax.random.key(0)
    out = jax.jit(trainer.task.apply)(params, batch, key)
    parts = [soft_cross_entropy(out[name], batch["label"], 0.0) for name in ("logits", "distilled")]
    found = ratio(jax.jit(trainer.task.loss)(params, batch, key)["loss"])
    assert float(found) == pytest.approx(float(np.mean(parts)), rel=1e-5)


def write_digits(task, folder, count):
    for i in range(count):
        Image.fromarray(task.data.test[i]["image"][..., 0]).save(folder / f"{i}.png")
    return [str(folder / f"{i}.png") for i in range(count)]


def test_files_are_predicted_as_the_split_they_come_from(classifier, tmp_path):
    trainer, params = classifier
    paths = write_digits(trainer.task, tmp_path, 70)  # more than a batch
    found = trainer.task.predict(params, paths, trainer.place)
    batch = trainer.place(next(trainer.task.eval_batches("test")))
    logits = np.asarray(trainer.task.apply(params, batch)["logits"])
    assert [f["image"] for f in found] == paths
    assert [int(f["label"]) for f in found[:64]] == logits.argmax(axis=1).tolist()
    chances = np.asarray(jax.nn.softmax(logits))
    for row, chance in zip(found, chances, strict=False):
        assert row["probability"] == pytest.approx(chance.max(), abs=1e-5)
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    alone = trainer.task.predict(params, paths[-1:], trainer.place)[0]
    assert alone["probabilities"] == pytest.approx(found[-1]["probabilities"], abs=1e-5)
    (tmp_path / "words.png").write_text("words", "utf-8")
    with pytest.raises(LabError, match="words.png cannot be read as an image"):
        trainer.task.predict(params, [str(tmp_path / "words.png")], trainer.place)


def task_of(assets, **changes):
    resolved = resolve(config_of(**changes))
    return ImageClassification(resolved.model_kind, resolved.model, resolved.sections, assets)


def test_a_checkpoint_predicts_with_its_own_normalisation_and_without_its_data(
    classifier, tmp_path
):
    trainer, params = classifier
    assets = trainer.task.assets()
    form = json.loads(assets["images.json"])
    assert form["size"] == [8, 8] and form["channels"] == 1
    moved = task_of(assets, data__source="folders", data__path="/gone")
    assert moved.normalise == trainer.task.normalise and moved.labels == trainer.task.labels
    paths = write_digits(trainer.task, tmp_path, 3)
    expected = trainer.task.predict(params, paths, trainer.place)
    assert moved.predict(params, paths, trainer.place) == expected


def test_the_configs_normalisation_comes_before_the_checkpoints_and_the_datas(classifier):
    assets = classifier[0].task.assets()
    chosen = task_of(assets, task__mean=(0.5,), task__std=(0.25,)).normalise
    assert tuple(chosen) == ((0.5,), (0.25,))
    with pytest.raises(LabError, match=r"task.mean = \(0.5, 0.4\), but images have 1 channel"):
        task_of(None, task__mean=(0.5, 0.4), task__std=(1.0, 1.0)).normalise  # noqa: B018


def test_other_classes_than_the_checkpoints_are_refused(classifier):
    assets = classifier[0].task.assets() | {"labels.json": b'["cat", "dog"]'}
    with pytest.raises(LabError, match="the data has the classes 0, 1, .* the checkpoint cat, dog"):
        task_of(assets).examples("train")


def test_a_run_on_other_classes_than_its_sources_takes_all_of_it_but_the_head(classifier):
    """And one on the same classes takes the head as well."""
    trainer, params = classifier
    assets, stored = trainer.task.assets(), jax.device_get(params)
    source = Source("runs/a", 60, stored, assets | {"labels.json": b'["cat", "dog"]'}, {})
    task, taken = task_from(source, None, task_of)
    assert task.labels == trainer.task.labels and task.normalise == trainer.task.normalise
    empty = jax.tree.map(np.zeros_like, stored)
    merged, lists = merge_params(empty, stored, taken.format("kernel|scale|bias"))
    assert lists["new"][:2] == ["classifier/bias", "classifier/kernel"]
    assert not any(x.any() for x in jax.tree.leaves(merged["classifier"]))
    np.testing.assert_array_equal(merged["patch_embedding"]["kernel"],
                                  stored["patch_embedding"]["kernel"])  # fmt: skip
    assert task_from(source._replace(assets=assets), None, task_of)[1] == "{}"


def test_a_split_without_images_has_no_scores(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8), 3).save(tmp_path / name / "0.png")
    own = {"data__source": "folders", "data__path": str(tmp_path), "data__channels": 1}
    trainer = trainer_of(batch__rows=2, **own)
    assert len(trainer.task.data.test) == 0
    params = start(trainer).params
    assert trainer.task.score(params, "test", trainer.place, True).values == {}
    assert trainer.evaluate(params, "test") == {}


def test_a_users_images_of_several_sizes_take_the_models_size(tmp_path):
    """The key is model.image_size; data.size takes its place, and a checkpoint's stays."""
    for name, size in (("a", (20, 9)), ("b", (7, 30))):
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.new("L", size, 9 * i).save(tmp_path / name / f"{i}.png")
    own = {"data__source": "folders", "data__path": str(tmp_path), "data__channels": 1}
    task = task_of(None, model__image_size=(12, 16), **own)
    assert task.data.train[0]["image"].shape == (12, 16, 1)
    assert task.model_config.image_size == (12, 16)
    assert task_of(None, model__image_size=(12, 16), data__size=(8, 8), **own).size == (8, 8)
    assert task_of(task.assets(), model__image_size=(8, 8), **own).size == (12, 16)
    with pytest.raises(LabError, match="image_size = 13x16 is no multiple of patch_size"):
        task_of(None, model__image_size=(13, 16), **own)
