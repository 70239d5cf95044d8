"""Swin: windows, their shifts, its switches and its cost."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from tests.models.meshed import assert_same_on_a_mesh
from transformer_lab.errors import LabError
from transformer_lab.models.swin import SwinConfig, _distances, _regions, build, training_flops

TINY = SwinConfig(
    image_size=(16, 12), patch_size=(2, 2), channels=1, width=8, stages=(2, 1), stage_heads=(2, 4),
    window=3, classes=3, drop_path=0.2, dropout=0.1, init_std=0.3,
)  # fmt: skip
IMAGES = jax.random.normal(jax.random.key(1), (8, 16, 12, 1))


@pytest.fixture(scope="module")
def params():
    found = jax.jit(build(TINY).init)(jax.random.key(0), IMAGES[:1])["params"]
    draw = lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape)  # noqa: E731
    return jax.tree.map(draw, found)


@pytest.mark.parametrize("second", [False, True], ids=["v1", "v2"])
def test_a_change_of_a_pixel_reaches_what_windows_and_their_shift_let_it_reach(second):
    """Its window of the first layer, and all windows of the second that this one meets; four places
    along an edge that shifting brings together from the image's other side stay apart."""
    more = {"cosine_attention": True, "window_bias": "log", "norm_place": "after"} if second else {}
    config = replace(TINY, image_size=(12, 12), stages=(2,), stage_heads=(2,), head="none", **more)
    model, image = build(config), IMAGES[:1, :12]
    params = jax.jit(model.init)(jax.random.key(2), image)["params"]
    hidden = jax.jit(lambda x: model.apply({"params": params}, x)["hidden"][0])
    changed = image.at[0, 0, 0, 0].add(3.0)  # of the place in the upper left corner
    moved = np.abs(hidden(changed) - hidden(image)).max(axis=-1)
    # Windows of 3 on 6 x 6 places; the second layer's begin at place 1 of both axes, and what lies
    # before is a part of its own.
    part = np.array([0, 1, 1, 1, 2, 2])
    reached = np.isin(part, part[:3])
    np.testing.assert_array_equal(moved.reshape(6, 6) > 1e-7, reached[:, None] & reached)


def test_places_of_a_shifted_window_see_those_alone_that_were_neighbours():
    regions = _regions(2, 2, 4, 2).reshape(2, 2, 4, 4)
    for window, near in ((regions[0, 0], np.ones((4, 4))), (regions[1, 1], np.zeros((4, 4)))):
        same = window == window[0, 0]
        np.testing.assert_array_equal(same, np.kron([[1, 0], [0, 0]], np.ones((2, 2))) + near > 0)


def test_a_bias_is_that_of_the_distance_from_the_query_to_the_key():
    every, index = _distances(3)
    places = [(row, column) for row in range(3) for column in range(3)]
    for i, query in enumerate(places):
        for j, key in enumerate(places):
            assert tuple(every[index[i, j]]) == (query[0] - key[0], query[1] - key[1])
    assert len({tuple(x) for x in every}) == 25


@pytest.mark.slow
def test_losses_and_gradients_on_a_mesh_are_those_of_one_device(params):
    assert_same_on_a_mesh(build(TINY), TINY, params, IMAGES)


@pytest.mark.slow
def test_images_are_alone_and_evaluation_has_no_chance(params):
    model = build(TINY)
    call = jax.jit(lambda params, x, key=None: model.apply({"params": params}, x, key)["logits"])
    alone, beside = call(params, IMAGES), call(params, IMAGES.at[1:].set(7.0))
    np.testing.assert_allclose(beside[0], alone[0], rtol=1e-5, atol=1e-5)
    assert np.abs(call(params, IMAGES, jax.random.key(3)) - alone).max() > 1e-2


def test_cosines_do_not_see_how_long_queries_and_keys_are(params):
    config = replace(TINY, cosine_attention=True, qkv_bias=False)
    model = build(config)
    own = jax.jit(model.init)(jax.random.key(0), IMAGES[:1])["params"]
    longer = jax.tree_util.tree_map_with_path(
        lambda path, x: 3 * x if {"query", "key"} & {k.key for k in path} else x, own
    )
    call = jax.jit(lambda params: model.apply({"params": params}, IMAGES)["hidden"])
    np.testing.assert_allclose(call(longer), call(own), atol=1e-5)
    assert np.exp(own["layer_0"]["attention"]["cosine_scale"]) == pytest.approx(10.0)


def test_flops_are_the_papers_and_grow_as_the_number_of_patches():
    """Liu 2021, table 1: 4.5, 8.7 and 15.4 billion multiplications and additions."""
    sizes = {(2, 2, 6, 2): (96, 4.5e9), (2, 2, 18, 2): (96, 8.7e9)}
    wider = replace(SwinConfig(), width=128, stages=(2, 2, 18, 2), stage_heads=(4, 8, 16, 32))
    configs = [replace(SwinConfig(), stages=stages) for stages in sizes]
    found = [training_flops(config) / 6 * 56 * 56 for config in (*configs, wider)]
    np.testing.assert_allclose(found, [4.5e9, 8.7e9, 15.4e9], rtol=0.01)
    large = replace(SwinConfig(), image_size=(448, 448), head="none")
    assert training_flops(large) == training_flops(replace(large, image_size=(224, 224)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 9}, "model.window = 9 is larger than the last stage's 4x3 places"),
        ({"stage_heads": (2,)}, "one of heads for each stage"),
        ({"stage_heads": (3, 4)}, "3 does not divide the width 8 of stage 0"),
        ({"patch_size": (5, 5)}, "no multiple of patch_size"),
        ({"drop_path": 1.0}, "drop_path"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(change, message):
    with pytest.raises(LabError, match=message):
        replace(TINY, **change)


def test_an_image_of_another_size_is_one_line(params):
    with pytest.raises(LabError, match=r"an image is of \(8, 12, 1\), the model of"):
        build(TINY).apply({"params": params}, IMAGES[:, :8])
