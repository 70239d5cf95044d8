"""DETR: where a place stands, queries as a set, images apart, any mesh."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.meshed import assert_same_on_a_mesh
from transformer_lab.errors import LabError
from transformer_lab.models import listened, need
from transformer_lab.models.base import ImageEncoder
from transformer_lab.models.cnn import CNNConfig
from transformer_lab.models.detr import DETRConfig, build, example_inputs
from transformer_lab.pretrained import describe, load
from transformer_lab.training.imported import check_source

NET = CNNConfig(stages=(1, 1), width=4, stem="small", image_size=(12, 8), channels=1, head="none")
TINY = DETRConfig(
    layers=1, decoder_layers=2, width=8, heads=2, head_dim=4, decoder_heads=4, queries=3, labels=2,
    feed_forward_width=12, decoder_feed_forward_width=12, backbone=NET, dropout=0.2,
)  # fmt: skip
IMAGES = jax.random.normal(jax.random.key(1), (8, 12, 8, 1))


@pytest.fixture(scope="module")
def params():
    return jax.jit(build(TINY).init)(jax.random.key(0), *example_inputs())["params"]


call = jax.jit(
    lambda params, images, real=None: build(TINY).apply(
        {"params": params}, images, None, None, real
    )
)


def test_rows_and_columns_are_shares_of_the_real_ones_as_angles(params):
    real = jnp.zeros((1, 5, 6), bool).at[:, :4, :3].set(True)
    found = build(TINY).bind({"params": params})._places(real)[0]
    for row in range(4):
        for column in range(3):
            angles = [(row + 1) / 4 * 2 * np.pi, (column + 1) / 3 * 2 * np.pi]
            wanted = [f(x / d) for x in angles for d in (1, 100) for f in (np.sin, np.cos)]
            np.testing.assert_allclose(found[row, column], wanted, atol=1e-4)


def test_what_fills_an_image_up_changes_that_image_alone(params):
    found = call(params, IMAGES, jnp.ones((8, 12, 8), bool).at[1, 8:].set(False))
    whole = call(params, IMAGES)
    np.testing.assert_allclose(found["boxes"][0], whole["boxes"][0], atol=1e-6)
    assert np.abs(found["logits"][1] - whole["logits"][1]).max() > 1e-4


def test_queries_are_a_set_and_images_are_apart(params):
    out = call(params, IMAGES)
    assert out["layer_logits"].shape == (2, 8, 3, 3)
    np.testing.assert_array_equal(out["layer_boxes"][-1], out["boxes"])
    order = jnp.array([2, 0, 1])
    moved = call(params | {"query_places": params["query_places"][order]}, IMAGES)
    np.testing.assert_allclose(moved["boxes"], out["boxes"][:, order], atol=1e-5)
    alone = call(params, IMAGES.at[1:].set(9.0))
    np.testing.assert_allclose(alone["logits"][0], out["logits"][0], atol=1e-5)
    assert ((out["boxes"] > 0) & (out["boxes"] < 1)).all()


@pytest.mark.slow
def test_losses_and_gradients_on_a_mesh_are_those_of_one_device(params):
    assert_same_on_a_mesh(build(TINY), TINY, params, IMAGES)


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_norms_tell_no_statistic_in_training(params, frozen):
    model = build(replace(TINY, frozen_norms=frozen))
    train = lambda params: listened(model.apply)({"params": params}, IMAGES, jax.random.key(0))  # noqa: E731
    _, told = jax.jit(train)(params)
    assert bool(told["statistics"]) != frozen


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_heads": 3}, "model.decoder_heads = 3 does not divide model.width = 8"),
        ({"width": 6, "head_dim": 3, "decoder_heads": 2}, "a multiple of 4"),
        ({"norm_place": "pre"}, 'model.norm_place = "post"'),
        ({"backbone": replace(NET, head="classes")}, 'head = "none"'),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(change, message):
    with pytest.raises(LabError, match=message):
        replace(TINY, **change)


def test_a_task_of_classes_and_grey_images_are_refused_by_name():
    with pytest.raises(LabError, match=r'"detr" does not go .* lacks model.classes, model.head'):
        need("detr", ImageEncoder)
    model = load(Path(__file__).parents[1] / "fixtures" / "vision" / "detr")
    assert describe(model).endswith("images of 224x224, head none")
    assert model.labels and check_source(model, Path("DIR")) is None
    grey = load(Path(__file__).parents[1] / "fixtures" / "vision" / "detr_learned")
    with pytest.raises(LabError, match="^DIR: its images have 1 channels, not 3"):
        check_source(grey, Path("DIR"))
