"""The Vision Transformer: pooling, tokens, positions, what it refuses."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.errors import LabError
from transformer_lab.layers.pooling import AttentionPool
from transformer_lab.models.vision import VisionConfig, build, example_inputs
from transformer_lab.ops.patches import resize_positions

TINY = VisionConfig(
    layers=1, width=8, heads=2, head_dim=4, feed_forward_width=12, image_size=(8, 6),
    patch_size=(4, 2), channels=1, classes=3, init_std=1.0,
)  # fmt: skip
IMAGES = np.float32(np.random.default_rng(1).normal(size=(2, 8, 6, 1)))


def run(config, images=IMAGES, params=None, **arguments):
    model = build(config)
    if params is None:
        params = draw(model, *example_inputs())["params"]
    out = jax.jit(lambda p, x: model.apply({"params": p}, x, **arguments))(params, images)
    return params, jax.device_get(out)


def test_a_class_token_stands_first_and_is_pooled():
    params, out = run(TINY)
    assert out["hidden"].shape == (2, 1 + 2 * 3, 8)
    np.testing.assert_array_equal(out["features"], out["hidden"][:, 0])
    head = params["classifier"]
    want = out["features"] @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(out["logits"], want, atol=1e-5)


def test_the_mean_is_of_patches_and_a_model_without_positions_knows_no_order():
    config = replace(TINY, pooling="mean", positions="none", pre_logits=5, head="none")
    params, out = run(config)
    assert out["hidden"].shape == (2, 6, 8) and out.keys() == {"hidden", "features"}
    layer = params["pre_logits"]
    want = np.tanh(out["hidden"].mean(axis=1) @ layer["kernel"] + layer["bias"])
    np.testing.assert_allclose(out["features"], want, atol=1e-5)
    turned = np.roll(IMAGES, 4, axis=1)  # by one row of patches
    np.testing.assert_allclose(run(config, turned, params)[1]["features"], want, atol=1e-5)
    fixed = replace(config, positions="sincos2d")
    assert abs(run(fixed, IMAGES, params)[1]["features"] - want).max() > 1e-3


def test_distillation_heads_are_averaged_in_evaluation_alone():
    config = replace(TINY, distillation="heads")
    params, out = run(config)
    _, training = run(config, params=params, dropout_key=jax.random.key(2))
    logits = []
    for name, place in (("classifier", 0), ("distilled_classifier", 1)):
        head = params[name]
        logits.append(out["hidden"][:, place] @ head["kernel"] + head["bias"])
    np.testing.assert_allclose(out["logits"], (logits[0] + logits[1]) / 2, atol=1e-5)
    np.testing.assert_allclose(training["logits"], logits[0], atol=1e-5)
    np.testing.assert_allclose(training["distilled"], logits[1], atol=1e-5)


def test_an_image_of_another_size_takes_resized_positions():
    params, _ = run(TINY)
    large = np.float32(np.random.default_rng(3).normal(size=(1, 16, 6, 1)))
    _, out = run(TINY, large, params)
    table = resize_positions(params["positions"]["embedding"], (2, 3), (4, 3), extra=1)
    again = params | {"positions": {"embedding": table}}
    _, want = run(replace(TINY, image_size=(16, 6)), large, again)
    np.testing.assert_allclose(out["logits"], want["logits"], atol=1e-5)


def test_attention_pooling_without_queries_is_the_mean_of_the_values():
    pool = AttentionPool(replace(TINY, norm="none"))
    states = np.float32(np.random.default_rng(4).normal(size=(2, 5, 8)))
    params = draw(pool, states)["params"]
    attention = params["attention"]
    attention["query"] = jax.tree.map(np.zeros_like, attention["query"])
    params["feed_forward"]["down"] = jax.tree.map(np.zeros_like, params["feed_forward"]["down"])
    read = lambda x, name: x @ attention[name]["kernel"] + attention[name].get("bias", 0.0)  # noqa: E731
    want = read(read(states.mean(axis=1), "value"), "out")
    np.testing.assert_allclose(jax.jit(pool.apply)({"params": params}, states), want, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_size": (8, 7)}, "8x7.*4x2"),
        ({"pooling": "class_token"}, 'did you mean "class_mean"'),
        ({"positions": "sincos"}, 'did you mean "sincos2d"'),
        ({"positions": "sincos2d", "width": 6}, "width = 6"),
        ({"distillation": "token", "pooling": "mean"}, "pooling"),
        ({"distillation": "heads", "head": "none"}, "head"),
        ({"classes": 0}, "at least 1"),
    ],
)
def test_impossible_settings_are_one_line(changes, words):
    with pytest.raises(LabError, match=words) as info:
        replace(TINY, **changes)
    assert "\n" not in str(info.value)


def test_channels_that_are_not_the_models_are_refused():
    with pytest.raises(LabError, match="3 channels, model.channels = 1"):
        jax.eval_shape(build(TINY).init_with_output, jax.random.key(0), *example_inputs())
        build(TINY).apply({"params": run(TINY)[0]}, jnp.zeros((1, 8, 6, 3)))
