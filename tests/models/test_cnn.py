"""Convolutional nets and what their BatchNorm counts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.errors import LabError
from transformer_lab.layers.pooling import MeanQueryPool
from transformer_lab.models import listened, parameter_shapes
from transformer_lab.models.cnn import CNNConfig, build, example_inputs
from transformer_lab.models.two_towers import TwoTowersConfig
from transformer_lab.tasks.base import count_parameters
from transformer_lab.training.state import renewed

TINY = CNNConfig(
    stages=(1, 1), width=4, stem="small", image_size=(6, 6), channels=1, classes=3, momentum=0.0
)
KEY = jax.random.key(5)
IMAGES = jnp.asarray(3 * np.random.default_rng(1).normal(size=(4, 6, 6, 1)) + 1, jnp.float32)
MODEL = build(TINY)
PARAMS = jax.jit(MODEL.init)(jax.random.key(0), *example_inputs())["params"]
train = jax.jit(
    lambda params, images, rows=None: listened(MODEL.apply)({"params": params}, images, KEY, rows)
)


def test_lenet_has_the_papers_parameters():
    config = CNNConfig(net="lenet", image_size=(28, 28), channels=1, classes=10)
    assert count_parameters(parameter_shapes("cnn", config)) == 61_706


def test_running_statistics_are_no_parameters():
    assert set(PARAMS) == {"stem", "layer_0", "layer_1", "classifier", "batch_stats"}
    kernels = 9 * (4 + 4 * 4 * 2 + 4 * 8 + 8 * 8) + 4 * 8
    assert count_parameters(PARAMS) == kernels + 2 * (3 * 4 + 3 * 8) + 8 * 3 + 3


def test_evaluation_with_the_batchs_own_statistics_is_training():
    out, told = train(PARAMS, IMAGES)
    own = PARAMS | {"batch_stats": renewed(PARAMS["batch_stats"], told["statistics"])}
    assert told["statistics"]["stem"]["norm"]["mean"][1] == 4
    found = jax.jit(lambda p: MODEL.apply({"params": p}, IMAGES))(own)
    np.testing.assert_allclose(found["logits"], out["logits"], atol=1e-4)
    convolved = jax.lax.conv(
        IMAGES.transpose(0, 3, 1, 2), PARAMS["stem"]["conv"]["kernel"].transpose(3, 2, 0, 1),
        (1, 1), "SAME",
    )  # fmt: skip
    stem = own["batch_stats"]["stem"]["norm"]
    np.testing.assert_allclose(stem["mean"], convolved.mean(axis=(0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(stem["var"], convolved.var(axis=(0, 2, 3)), rtol=1e-5)


def test_padding_rows_enter_no_statistic():
    alone, told = train(PARAMS, IMAGES[:3], np.ones(3, bool))
    padded = np.concatenate([IMAGES[:3], np.full((2, 6, 6, 1), 100.0, np.float32)])
    found, same = train(PARAMS, padded, np.array([1, 1, 1, 0, 0], bool))
    np.testing.assert_allclose(found["logits"][:3], alone["logits"], atol=1e-5)
    compare = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)  # noqa: E731
    jax.tree.map(compare, same["statistics"], told["statistics"])


CLIP = replace(
    TINY, block="bottleneck", stages=(1, 1), stem="deep", antialias=True, pooling="attention",
    image_size=(16, 24), width=4, head="none", pool_heads=4, pool_width=6,
)  # fmt: skip


def convolved(params, name, x, step=1):
    """A convolution and a norm whose running mean is 0 and variance 1, by hand."""
    kernel = params[name]["conv"]["kernel"]
    pad = kernel.shape[0] // 2
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))
    out = np.einsum("bijcyx,yxcd->bijd", windows[:, ::step, ::step], kernel)
    norm = params[name]["norm"]
    return out / np.sqrt(1 + 1e-5) * norm["scale"] + norm["bias"]


def halved(x):
    b, h, w, c = x.shape
    return x.reshape(b, h // 2, 2, w // 2, 2, c).mean(axis=(2, 4))


def test_clips_net_averages_where_others_step():
    """Radford 2021, section 2.4: three convolutions first, and 2 x 2 averages before each step."""
    model, relu = build(CLIP), lambda x: np.maximum(x, 0)
    params = jax.device_get(jax.jit(model.init)(jax.random.key(0), *example_inputs())["params"])
    images = np.float32(np.random.default_rng(1).normal(size=(2, 16, 24, 1)))
    x = relu(convolved(params, "stem_0", images, 2))
    x = halved(relu(convolved(params, "stem_2", relu(convolved(params, "stem_1", x)))))
    for layer, average in (("layer_0", lambda x: x), ("layer_1", halved)):
        block = params[layer]
        h = relu(convolved(block, "part_1", relu(convolved(block, "part_0", x))))
        h = convolved(block, "part_2", average(h))
        x = relu(h + convolved(block, "shortcut", average(x)))
    assert x.shape == (2, 2, 3, 32)
    states = np.float32(x.reshape(2, 6, 32))
    pool = jax.jit(MeanQueryPool(CLIP.pool).apply)({"params": params["pool"]}, states)
    found = jax.jit(model.apply)({"params": params}, images)["features"]
    assert found.shape == (2, 6) and params["pool"]["positions"].shape == (7, 32)
    np.testing.assert_allclose(found, pool, rtol=1e-4, atol=1e-4)


def test_clips_rn50_has_the_tower_of_the_released_weights():
    """Blocks as ResNet-50's; a stem of 3, 32, 32, 64 channels; positions, four dense layers."""
    blocks = 25_557_032 - (2048 * 1000 + 1000) - (7 * 7 * 3 * 64 + 2 * 64)
    stem = 9 * (3 * 32 + 32 * 32 + 32 * 64) + 2 * (32 + 32 + 64)
    pool = (7 * 7 + 1) * 2048 + 3 * (2048 * 2048 + 2048) + 2048 * 1024 + 1024
    shapes = parameter_shapes("cnn", TwoTowersConfig().cnn)
    assert count_parameters(shapes) == blocks + stem + pool == 38_316_896


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pooling": "attention", "pool_heads": 3}, "pool_heads = 3 does not divide .* 8 channels"),
        ({"net": "resnt"}, 'did you mean "resnet"'),
        ({"net": "lenet", "image_size": (8, 28)}, "12 or more"),
        ({"stages": ()}, "at least 1"),
        ({"momentum": 1.0}, "momentum"),
        ({"norm_epsilon": -0.5}, r"model.norm_epsilon = -0.5 is not in \[0, 1\)"),
    ],
)
def test_impossible_settings_are_one_line(changes, words):
    with pytest.raises(LabError, match=words) as info:
        replace(TINY, **changes)
    assert "\n" not in str(info.value)
