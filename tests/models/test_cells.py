"""The detector of cells: its grid, where its boxes are, any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.meshed import assert_same_on_a_mesh
from transformer_lab.errors import LabError
from transformer_lab.models.cells import CellsConfig, build, example_inputs
from transformer_lab.models.cnn import CNN, CNNConfig

NET = CNNConfig(stages=(1, 1), width=4, stem="small", image_size=(8, 12), channels=1, head="none")
TINY = CellsConfig(backbone=NET, width=8, labels=2)


@pytest.mark.parametrize("stem", ["large", "small", "deep"])
@pytest.mark.parametrize("antialias", [False, True])
def test_the_grid_is_the_nets_last_map(stem, antialias):
    net = CNNConfig(stages=(1, 1, 1), width=4, stem=stem, antialias=antialias, head="none")
    params = jax.eval_shape(CNN(net).init, jax.random.key(0), *example_inputs())["params"]
    for size in ((32, 48), (37, 51), (64, 33)):
        images = jax.ShapeDtypeStruct((1, *size, 3), jnp.float32)
        found = jax.eval_shape(lambda p, x: CNN(net).apply({"params": p}, x)["map"], params, images)
        assert found.shape[1:3] == net.map_size(size)


def test_a_box_has_its_centre_in_its_cell_and_is_measured_by_the_real_image():
    config = TINY.of_size((8, 12), 3)
    assert (config.grid, config.queries, config.labels) == ((4, 6), 24, 3)
    model = build(config)
    params = jax.jit(model.init)(jax.random.key(0), *example_inputs())["params"]
    images = jax.random.normal(jax.random.key(1), (2, 8, 12, 1))
    real = jnp.ones((2, 8, 12), bool).at[1, :, 6:].set(False)
    out = jax.jit(model.apply)({"params": params}, images, None, None, real)
    assert out["layer_logits"].shape == (1, 2, 24, 4)
    places = np.stack([np.arange(24) % 6, np.arange(24) // 6], axis=-1)
    np.testing.assert_array_equal(np.floor(out["boxes"][0, :, :2] * jnp.array([6, 4])), places)
    np.testing.assert_array_equal(np.floor(out["boxes"][1, :, :2] * jnp.array([3, 4])), places)


def test_losses_and_gradients_on_a_mesh_are_those_of_one_device():
    params = jax.jit(build(TINY).init)(jax.random.key(0), *example_inputs())["params"]
    images = jax.random.normal(jax.random.key(1), (8, 8, 12, 1))
    assert_same_on_a_mesh(build(TINY), TINY, params, images)


def test_a_net_with_a_head_of_its_own_is_refused():
    with pytest.raises(LabError, match='needs net = "resnet" and head = "none"'):
        CellsConfig(backbone=CNNConfig())
