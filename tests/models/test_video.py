"""Clips to classes: tubelets, the two stages, and what the order of frames changes."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.errors import LabError
from transformer_lab.models import costs, parameter_shapes
from transformer_lab.models.video import VideoConfig, build
from transformer_lab.models.vision import Vision
from transformer_lab.ops.patches import to_groups

TINY = VideoConfig(
    image_size=(4, 6), patch_size=(2, 3), layers=1, width=8, heads=2, head_dim=4,
    feed_forward_width=12, frames=4, tubelet=1, temporal_layers=1, classes=3, init_std=0.5,
)  # fmt: skip
CLIPS = jnp.float32(np.random.default_rng(0).normal(size=(2, 4, 4, 6, 3)))


def outputs(config, clips, variables=None):
    model = build(config)
    variables = variables or jax.jit(model.init)(jax.random.key(1), clips[:1])
    return jax.jit(model.apply)(variables, clips), variables


def test_a_tubelet_becomes_the_sum_of_its_weighted_pixels():
    config = replace(TINY, tubelet=2)
    model = build(config)
    variables = jax.jit(model.init)(jax.random.key(1), CLIPS[:1])
    look = partial(
        model.apply, mutable=["intermediates"],
        capture_intermediates=lambda module, _: module.name == "patch_embedding",
    )  # fmt: skip
    _, left = jax.jit(look)(variables, CLIPS)
    found = left["intermediates"]["spatial"]["patch_embedding"]["__call__"][0]
    assert found.shape == (2 * 2, 4, 8)  # clips and groups, tubelets, width
    map_ = variables["params"]["spatial"]["patch_embedding"]
    # The kernel's rows: those of the patch, its columns, the frames, the colours.
    kernel = np.asarray(map_["kernel"]).reshape(2, 3, 2, 3, 8)
    expected = np.asarray(map_["bias"], np.float64)
    for time in range(2):  # clip 1, the second group of frames, row 1 and column 0 of tubelets
        for row in range(2):
            for column in range(3):
                for colour in range(3):
                    pixel = CLIPS[1, 2 + time, 2 + row, column, colour]
                    expected = expected + pixel * kernel[row, column, time, colour]
    np.testing.assert_allclose(found[1 * 2 + 1, 2], expected, atol=1e-5)
    groups = to_groups(CLIPS, 2)
    np.testing.assert_array_equal(groups[1, 1, 3, 5], CLIPS[1, 2:, 3, 5].reshape(-1))


def test_the_order_of_frames_changes_what_time_sees_but_no_frames_own_vector():
    order = [2, 0, 3, 1]
    found, variables = outputs(TINY, CLIPS)
    moved, _ = outputs(TINY, CLIPS[:, np.array(order)], variables)
    np.testing.assert_allclose(moved["groups"], found["groups"][:, order], atol=1e-5)
    assert np.abs(moved["features"] - found["features"]).max() > 1e-2
    spatial = variables["params"]["spatial"]  # each frame's vector is the Vision Transformer's
    alone = jax.jit(Vision(TINY.spatial).apply)({"params": spatial}, CLIPS[:, 3])["features"]
    np.testing.assert_allclose(found["groups"][:, 3], alone, atol=1e-5)
    for changes, least, most in (
        ({"time": "joint"}, 1e-2, np.inf),
        # Without a stack over time, or positions in it, the order of frames is not seen.
        ({"temporal_layers": 0}, 0, 1e-5),
        ({"pooling": "mean", "positions": "none"}, 0, 1e-5),
        ({"pooling": "mean"}, 1e-2, np.inf),
    ):
        config = replace(TINY, **changes)
        found, variables = outputs(config, CLIPS)
        moved, _ = outputs(config, CLIPS[:, np.array(order)], variables)
        apart = np.abs(moved["features"] - found["features"]).max()
        assert least <= apart < most, changes


def test_on_one_frame_it_is_the_vision_transformer():
    config = replace(TINY, frames=1, temporal_layers=0)
    found, variables = outputs(config, CLIPS[:, :1])
    params = variables["params"]
    same = {**params["spatial"], "classifier": params["classifier"]}
    vit = Vision(replace(config.spatial, head="classes", classes=3))
    expected = jax.jit(vit.apply)({"params": same}, CLIPS[:, 0])
    np.testing.assert_allclose(found["logits"], expected["logits"], atol=1e-5)
    joint, _ = outputs(replace(config, time="joint"), CLIPS[:, :1], variables)
    np.testing.assert_allclose(joint["logits"], expected["logits"], atol=1e-5)


def test_dropout_needs_a_key_and_a_wrong_clip_is_refused():
    model = build(replace(TINY, dropout=0.5))
    variables = jax.jit(model.init)(jax.random.key(1), CLIPS[:1])
    apply = jax.jit(model.apply)
    one, two = (apply(variables, CLIPS, jax.random.key(i))["logits"] for i in (1, 2))
    assert not np.allclose(one, two)
    with pytest.raises(LabError, match="a clip has 4 frames"):
        model.apply(variables, CLIPS[:, :2])
    for changes, message in (
        ({"frames": 5, "tubelet": 2}, "model.frames = 5 is no multiple of model.tubelet"),
        ({"time": "joined"}, 'did you mean "joint"'),
        ({"pre_logits": 4}, "model.pre_logits"),
    ):
        with pytest.raises(LabError, match=message):
            replace(TINY, **changes)


def test_the_published_model_has_as_many_parameters_as_its_parts():
    config = VideoConfig(classes=400)  # ViViT-B/16x2 on Kinetics-400
    found = costs.count(parameter_shapes("video", config))
    block = 4 * 768 * 768 + 4 * 768 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    spatial = 16 * 16 * 3 * 2 * 768 + 768 + 768 + 197 * 768 + 12 * block + 2 * 768
    temporal = 768 + 17 * 768 + 4 * block + 2 * 768
    assert found == spatial + temporal + 768 * 400 + 400
    assert found / 1e6 == pytest.approx(115.1, rel=2e-3)  # Arnab 2021, table 2
