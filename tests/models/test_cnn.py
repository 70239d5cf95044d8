"""Convolutional nets and what their BatchNorm counts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.errors import LabError
from transformer_lab.models import parameter_shapes
from transformer_lab.models.cnn import CNNConfig, build, example_inputs
from transformer_lab.tasks.base import count_parameters

TINY = CNNConfig(
    stages=(1, 1), width=4, stem="small", image_size=(6, 6), channels=1, classes=3, momentum=0.0
)
KEY = jax.random.key(5)
IMAGES = 3 * jax.random.normal(jax.random.key(1), (4, 6, 6, 1)) + 1
MODEL = build(TINY)
PARAMS = jax.jit(MODEL.init)(jax.random.key(0), *example_inputs())["params"]
train = jax.jit(
    lambda params, images, rows=None: MODEL.apply({"params": params}, images, KEY, rows)
)


def test_lenet_has_the_papers_parameters():
    config = CNNConfig(net="lenet", image_size=(28, 28), channels=1, classes=10)
    assert count_parameters(parameter_shapes("cnn", config)) == 61_706


def test_running_statistics_are_no_parameters():
    assert set(PARAMS) == {"stem", "layer_0", "layer_1", "classifier", "batch_stats"}
    kernels = 9 * (4 + 4 * 4 * 2 + 4 * 8 + 8 * 8) + 4 * 8
    assert count_parameters(PARAMS) == kernels + 2 * (3 * 4 + 3 * 8) + 8 * 3 + 3


def test_evaluation_with_the_batchs_own_statistics_is_training():
    out = train(PARAMS, IMAGES)
    new, rows = out["batch_stats"]
    assert rows == 4
    own = PARAMS | {"batch_stats": jax.tree.map(lambda x: x / rows, new)}
    found = jax.jit(lambda p: MODEL.apply({"params": p}, IMAGES))(own)
    assert "batch_stats" not in found
    np.testing.assert_allclose(found["logits"], out["logits"], atol=1e-4)
    convolved = jax.lax.conv(
        IMAGES.transpose(0, 3, 1, 2), PARAMS["stem"]["conv"]["kernel"].transpose(3, 2, 0, 1),
        (1, 1), "SAME",
    )  # fmt: skip
    stem = own["batch_stats"]["stem"]["norm"]
    np.testing.assert_allclose(stem["mean"], convolved.mean(axis=(0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(stem["var"], convolved.var(axis=(0, 2, 3)), rtol=1e-5)


def test_padding_rows_enter_no_statistic():
    alone = train(PARAMS, IMAGES[:3], jnp.ones(3, bool))
    padded = jnp.concatenate([IMAGES[:3], jnp.full((2, 6, 6, 1), 100.0)])
    found = train(PARAMS, padded, jnp.array([1, 1, 1, 0, 0], bool))
    np.testing.assert_allclose(found["logits"][:3], alone["logits"], atol=1e-5)
    compare = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)  # noqa: E731
    jax.tree.map(compare, found["batch_stats"], alone["batch_stats"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"net": "resnt"}, 'did you mean "resnet"'),
        ({"net": "lenet", "image_size": (8, 28)}, "12 or more"),
        ({"stages": ()}, "at least 1"),
        ({"momentum": 1.0}, "momentum"),
    ],
)
def test_impossible_settings_are_one_line(changes, words):
    with pytest.raises(LabError, match=words) as info:
        replace(TINY, **changes)
    assert "\n" not in str(info.value)
