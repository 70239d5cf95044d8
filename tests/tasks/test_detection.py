"""Detection: the reference's loss, padding and meshes that change nothing, scores, commands."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.entry import command
from tests.tasks.examples import config_of
from tests.tiny import leave_run, make_trainer
from transformer_lab.data.images.boxes import Boxed
from transformer_lab.errors import LabError
from transformer_lab.layers.told import listened
from transformer_lab.models.detr import build
from transformer_lab.opened import open_run
from transformer_lab.pretrained import load
from transformer_lab.pretrained.beside import export_run
from transformer_lab.tasks.average_precision import Detections, average_precision
from transformer_lab.tasks.detection import set_losses
from transformer_lab.training import imported
from transformer_lab.training.trainer import Trainer
from transformer_lab.viewing.capture import Inputs, capture
from transformer_lab.viewing.heads import measure
from transformer_lab.viewing.page import page
from transformer_lab.viewing.png import png

DETR = Path(__file__).parents[1] / "fixtures" / "vision" / "detr"
WEIGHTS = {"weights": (1.0, 5.0, 2.0), "none_weight": 0.1}


def test_the_loss_is_the_references_with_all_layers():
    model, stored = load(DETR), np.load(DETR / "loss.npz")
    pixels = dict(np.load(DETR / "expected.npz"))
    images = pixels["pixel_values"].transpose(0, 2, 3, 1)
    real = pixels["pixel_mask"] != 0
    apply = build(model.config).apply
    out = jax.jit(apply)({"params": model.params}, images, None, None, real)
    one = jax.jit(jax.vmap(partial(set_losses, **WEIGHTS, grid=None), (0, 0, 0, 0, 0, None)))
    for number in range(2):
        boxes, label = np.zeros((2, 4, 4), np.float32), np.full((2, 4), -1, np.int32)
        for image in range(2):
            some = stored[f"boxes_{number}_{image}"]
            boxes[image, : len(some)] = some
            label[image, : len(some)] = stored[f"label_{number}_{image}"]
        whole = 0.0
        for layer, name in ((0, "_0"), (1, "")):
            found = out["layer_logits"][layer], out["layer_boxes"][layer]
            sums = one(*found, label, boxes, label >= 0, jnp.ones(2))
            nats, weight, distance, overlap, count = (np.asarray(x).sum() for x in sums)
            parts = {"ce": nats / weight, "bbox": distance / count, "giou": overlap / count}
            for part, value in parts.items():
                wanted = stored[f"loss_{part}{name}_{number}"]
                np.testing.assert_allclose(value, wanted, rtol=1e-5, err_msg=part)
            whole += parts["ce"] + 5 * parts["bbox"] + 2 * parts["giou"]
        np.testing.assert_allclose(whole, stored[f"loss_{number}"], rtol=1e-5)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    config = config_of("detection", tmp_path_factory.mktemp("boxes"))
    config.update_from_flattened_dict(
        {"model.dropout": 0.0, "batch.rows": 8, "data.longest": 4, "data.shortest": 4}
    )
    return config


def drawn(rows, seed=0):
    """A batch of random images and boxes, some of them padded, without objects, or padding."""
    rng = np.random.default_rng(seed)
    size = rng.integers(2, 5, (rows, 2), dtype=np.int32)
    image = rng.integers(0, 256, (rows, 4, 4, 3), dtype=np.uint8)
    boxes = rng.uniform(0.2, 0.5, (rows, 2, 4)).astype(np.float32)
    label = rng.integers(-1, 2, (rows, 2), dtype=np.int32)
    mask = np.arange(rows) < rows - 1
    return {"image": image, "size": size, "boxes": boxes, "label": label, "mask": mask}


@pytest.mark.slow
def test_steps_on_eight_devices_and_in_micro_batches_are_those_of_one(config):
    found = []
    for devices, changes in (
        (1, {"mesh.data": 1}),
        (8, {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2, "micro_batches": 2}),
    ):
        own = config.copy_and_resolve_references()
        own.update_from_flattened_dict(changes)
        trainer, lines = make_trainer(own, devices), []
        state = trainer.init()
        for seed in range(2):
            state, metrics = trainer.train_step(state, trainer.place(drawn(8, seed)))
            lines.append(
                {n: float(metrics[n]) for n in ("loss", "box_l1", "box_giou", "grad_norm")}
            )
        found.append(lines)
    for one, same in zip(*found, strict=True):
        for name, value in one.items():
            assert same[name] == pytest.approx(value, rel=2e-5), name


def test_what_pads_an_image_and_its_mates_change_no_detection(config):
    trainer = make_trainer(config, 1)
    task, params = trainer.task, trainer.init().params
    batch = jax.tree.map(jnp.asarray, drawn(8))
    found = jax.jit(task._found)
    alone = found(params, batch)
    inside = np.arange(4) < batch["size"][0, 0], np.arange(4) < batch["size"][0, 1]
    image = np.array(batch["image"])
    image[1:], image[0][~np.logical_and.outer(*inside)] = 7, 99
    other = batch | {"image": jnp.asarray(image)}
    for one, same in zip(alone, found(params, other), strict=True):
        np.testing.assert_allclose(one[0], same[0], atol=1e-5)
    sums = lambda batch: task.sums(params, batch, None, False)  # noqa: E731
    fewer = {name: value[:7] for name, value in batch.items()}
    for name, pair in jax.jit(sums)(batch).items():
        np.testing.assert_allclose(pair, jax.jit(sums)(fewer)[name], rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_the_boxes_losses_are_told_with_their_own_weight(config):
    task = make_trainer(config, 1).task
    params, batch = task.init(jax.random.key(0)), jax.tree.map(jnp.asarray, drawn(8))
    pairs, told = jax.jit(listened(task.loss))(params, batch, jax.random.key(0))
    assert pairs.keys() == {"loss"}
    count = ((batch["label"] >= 0) & batch["mask"][:, None]).sum()
    queries = 7 * 3
    assert float(pairs["loss"][1]) == pytest.approx(count + 0.1 * (queries - count))
    for name, coefficient in (("box_l1", 5), ("box_giou", 2)):
        total, weight, scaled = told["losses"][name]
        assert float(weight) == count and float(scaled) == pytest.approx(coefficient * float(total))


def test_cells_find_the_object_in_them_and_only_the_first_of_two():
    boxes = jnp.array([[0.1, 0.1, 0.2, 0.2], [0.9, 0.9, 0.1, 0.1], [0.15, 0.2, 0.3, 0.3]])
    found = jnp.tile(jnp.array([[0.1, 0.1, 0.2, 0.2]]), (4, 1)).at[3].set(boxes[1])
    logits = jnp.full((4, 3), -9.0).at[:, 2].set(9.0)
    logits = logits.at[0].set(jnp.array([9.0, -9, -9])).at[3].set(jnp.array([-9.0, 9, -9]))
    real = jnp.array([True, True, True])
    losses = jax.jit(partial(set_losses, **WEIGHTS, grid=(2, 2)))
    sums = losses(logits, found, jnp.array([0, 1, 1]), boxes, real, jnp.ones(2))
    np.testing.assert_allclose(sums, [0, 2.2, 0, 0, 2], atol=1e-5)
    # In an image that fills the left half, the second object is in the left column of cells.
    half = losses(logits, found, jnp.array([0, 1, 1]), boxes, real, jnp.array([1.0, 0.5]))
    assert float(half[0]) > 10


def test_a_trained_net_of_cells_counts_its_boxes_by_the_real_image(config):
    own = config.copy_and_resolve_references()
    cells = {"kind": "cells", "width": 8, "backbone": own.model.backbone}
    own = own.copy_and_resolve_references()
    with own.unlocked():
        own.model = cells | {"labels": 2}
    trainer = make_trainer(own, 1)
    task, batch = trainer.task, drawn(8)
    assert task.model_config.grid == (4, 4) and task.model_config.queries == 16
    _, corners = task._found(trainer.init().params, batch)
    middle = (np.asarray(corners)[..., :2] + np.asarray(corners)[..., 2:]) / 2
    cell = np.floor(middle * batch["size"][:, None, ::-1]).astype(int)
    places = np.stack([np.arange(16) % 4, np.arange(16) // 4], axis=-1)
    np.testing.assert_array_equal(cell, np.broadcast_to(places, cell.shape))


def image_of(boxes, labels, ignored=None):
    count = len(labels)
    ignored = np.zeros(count, bool) if ignored is None else np.array(ignored)
    found = np.array(boxes, np.float32).reshape(-1, 4)
    return Boxed(np.zeros((100, 100, 3), np.uint8), found, np.array(labels, np.int32), ignored)


def guess(boxes, scores, labels):
    return Detections(
        np.array(boxes, float).reshape(-1, 4), np.array(scores, float), np.array(labels, int)
    )


def test_average_precision_of_known_cases():
    pytest.importorskip("pycocotools")
    square, big = [10, 10, 30, 30], [0, 0, 80, 80]
    truth = [image_of([square], [0]), image_of([square, big], [1, 0])]
    right = [guess([square], [0.9], [0]), guess([square, big], [0.8, 0.7], [1, 0])]
    found = average_precision(truth, right, 2)
    for name in ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ar", "ap_any_class"):
        assert found[name] == pytest.approx(1), name
    assert "ap_large" not in found
    # The wrong class of one of three: one class has 1/2 of its objects at precision 1 (a recall of
    # 0, 0.01, ..., 0.5 of the 101), the other none; without classes nothing is wrong.
    wrong = [right[0], guess([square, big], [0.8, 0.7], [0, 1])]
    found = average_precision(truth, wrong, 2)
    assert found["ap50"] == pytest.approx(51 / 101 / 2) and found[
        "ap50_any_class"
    ] == pytest.approx(1)
    # An overlap of 0.62 counts at 0.5, 0.55 and 0.6.
    shifted = guess([[10, 10, 30, 22.4]], [0.9], [0])
    found = average_precision(truth[:1], [shifted], 2)
    assert (found["ap50"], found["ap75"]) == pytest.approx((1, 0)) and found["ap"] == pytest.approx(
        0.3
    )
    # What is ignored is neither missing nor wrong; nothing found at all is 0.
    crowd = [image_of([square, big], [0, 0], [False, True])]
    assert average_precision(crowd, [guess([square, big], [0.5, 0.9], [0, 0])], 1)[
        "ap"
    ] == pytest.approx(1)
    assert set(average_precision(truth, [guess([], [], [])] * 2, 2).values()) == {0.0}


@pytest.mark.slow
def test_a_checkpoint_of_the_reference_is_a_run_that_detects(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for file in ("config.json", "model.safetensors"):
        (source / file).write_bytes((DETR / file).read_bytes())
    sizes = {"size": {"shortest_edge": 24, "longest_edge": 40}, "image_mean": [0.5] * 3}
    (source / "preprocessor_config.json").write_text(json.dumps(sizes | {"image_std": [0.2] * 3}))
    run = tmp_path / "run"
    imported.save_to_workdir(load(source), source, run)
    rng, good = np.random.default_rng(0), [str(tmp_path / f"{name}.png") for name in "ab"]
    for file in good:
        Image.fromarray(rng.integers(0, 256, (30, 60, 3), dtype=np.uint8)).save(file)
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"")
    out = tmp_path / "out"
    arguments = [f"--workdir={run}", "--threshold=0", f"--output={out}", "--json"]
    done = command("detect", good[0], str(bad), good[1], *arguments)
    assert done.returncode == 2 and b"bad.png is empty" in done.stderr
    rows = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert [row["image"] for row in rows] == good
    for row in rows:
        assert len(row["objects"]) == 5  # queries
        scores = [found["score"] for found in row["objects"]]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= side <= 60 for found in row["objects"] for side in found["box"])
    assert sorted(path.name for path in out.iterdir()) == ["a.png", "b.png"]
    with Image.open(out / "a.png") as picture:
        assert picture.size == (420, 210)  # seven times as large
    opened = open_run(run)
    assert opened.detect(good[0], 0.0) == rows[0]["objects"]
    export_run("detr", opened.task, opened.params, tmp_path / "again")
    assert imported.read_sides(tmp_path / "again") == {"shortest": 24, "longest": 40}
    assert load(tmp_path / "again").labels == load(source).labels


def test_sizes_that_a_preprocessor_cannot_have_are_one_line(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 8, "width": 8}}')
    with pytest.raises(LabError, match="size must have a shortest_edge and a longest_edge"):
        imported.read_sides(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"size": 8, "max_size": 12}')
    assert imported.read_sides(tmp_path) == {"shortest": 8, "longest": 12}


def test_more_objects_than_queries_are_refused(config):
    own = config.copy_and_resolve_references()
    own.batch.objects = 4
    with pytest.raises(LabError, match="batch.objects = 4 is more than model.queries = 3"):
        make_trainer(own, 1)


@pytest.mark.slow
def test_attention_of_what_was_found_lies_over_the_image(config, tmp_path):
    leave_run(config, tmp_path / "run")
    Image.new("RGB", (8, 4), "red").save(tmp_path / "a.png")
    run = open_run(tmp_path / "run")
    maps = capture(run.task, run.params, Inputs(image=str(tmp_path / "a.png")))
    cross = maps["cross-attention"]
    assert cross.weights.shape[:2] == (2, 2) and cross.weights.shape[3] == 2 * 4
    np.testing.assert_allclose(cross.weights.sum(axis=-1), 1, atol=1e-5)
    assert cross.grid == (2, 4) and len(cross.rows) == cross.weights.shape[2]
    assert maps["encoder self-attention"].weights.shape == (1, 2, 8, 8)
    assert "cross-attention" in page(maps, "a") and png(cross)[:4] == b"\x89PNG"
    assert "distance" not in measure(cross)


def test_a_trainer_of_detection_evaluates(config):
    pytest.importorskip("pycocotools")
    trainer: Trainer = make_trainer(config, 1)
    params = trainer.init().params
    scores = trainer.task.score(params, "test", trainer.place, True)
    assert scores.values["num_examples"] == 2 and 0 <= scores.values["ap50"] <= 1
    found = trainer.evaluate(params, "test")
    assert found.keys() == {"loss", "box_l1", "box_giou"}
