"""One step: accumulation, padding, clipping, number types, meshes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.tiny import make_trainer, tiny_config
from transformer_lab.ops.layout import ROW_AXES
from transformer_lab.ops.losses import masked_sum
from transformer_lab.training.config import MeshConfig, OptimizerConfig
from transformer_lab.training.mesh import make_mesh
from transformer_lab.training.optimizer import make_optimizer, schedule
from transformer_lab.training.state import TrainState, loss_and_gradient, make_train_step

MESH = make_mesh(MeshConfig(data=1), 1)


def linear_loss(params, batch, key):
    return {"loss": masked_sum(batch["x"] * params["w"], batch["mask"])}


def padded(rows, width=4):
    x, mask = np.full((len(rows), width), np.nan, np.float32), np.zeros((len(rows), width), bool)
    for i, row in enumerate(rows):
        x[i, : len(row)], mask[i, : len(row)] = row, True
    return {"x": jnp.asarray(np.nan_to_num(x, nan=7.0)), "mask": jnp.asarray(mask)}


@pytest.mark.parametrize("parts", [1, 2])
def test_accumulated_loss_weighs_tokens_not_micro_batches(parts):
    batch = padded([[1, 2, 3], [9]])
    params = {"w": jnp.float32(1.0)}
    pairs, gradient = loss_and_gradient(linear_loss, params, batch, jax.random.key(0), parts, MESH)
    assert pairs["loss"][0] / pairs["loss"][1] == 3.75 and gradient["w"] == 3.75


def test_an_all_padding_micro_batch_adds_nothing_and_an_empty_batch_no_nan():
    params = {"w": jnp.float32(1.0)}
    batch = padded([[1, 2, 3], [9], [], []])
    pairs, gradient = loss_and_gradient(linear_loss, params, batch, jax.random.key(0), 4, MESH)
    assert gradient["w"] == 3.75 and pairs["loss"][1] == 4
    _, nothing = loss_and_gradient(
        linear_loss, params, padded([[], []]), jax.random.key(0), 2, MESH
    )
    assert nothing["w"] == 0


def test_clipping_acts_on_the_accumulated_gradient():
    def loss(params, batch, key):
        return {"loss": ((params["w"] * batch["x"]).sum(), jnp.float32(0.5))}

    config = OptimizerConfig(
        name="sgd", b1=0.0, learning_rate=1.0, schedule="constant", warmup_steps=1, clip_norm=1.0
    )
    rate = schedule(config, 10)
    optimizer = make_optimizer(config, rate)
    params = {"w": jnp.zeros(2)}
    state = TrainState(jnp.int32(0), params, optimizer.init(params))
    step = make_train_step(loss, optimizer, rate, 0, 2, MESH)
    batch = {"x": jnp.array([[3.0, 0.0], [0.0, 4.0]])}
    state, metrics = jax.jit(step)(state, batch)
    np.testing.assert_allclose(state.params["w"], [-0.6, -0.8], rtol=1e-6)
    np.testing.assert_allclose(metrics["grad_norm"], 5.0, rtol=1e-6)


@functools.cache
def translator(mesh, dropout):
    config = tiny_config(
        micro_batches=1,
        model__dropout=dropout,
        model__norm_place="pre",
        batch__tokens_per_batch=300,
        **{f"mesh.{a}": n for a, n in zip(("data", "fsdp", "tensor"), mesh, strict=True)},
    )
    return make_trainer(config, int(np.prod(mesh)))


@functools.cache
def first_params():
    return jax.device_get(translator((1, 1, 1), 0.0).init().params)


def gradients(parts, mesh, dropout=0.0, rows=None):
    """Loss and gradients of the tiny translator's first batch."""
    trainer = translator(mesh, dropout)
    host = next(trainer.task.train_batches())
    host = {name: value[:16].copy() for name, value in host.items()}
    if rows is not None:  # these hold padding only
        host["target_mask"][rows] = False
        host["source_mask"][rows] = False
    params = jax.device_put(first_params(), trainer.state_shardings.params)
    run = jax.jit(
        lambda p, b: loss_and_gradient(
            trainer.task.loss, p, b, jax.random.key(3), parts, trainer.mesh
        )
    )
    pairs, gradient = run(params, trainer.place(host))
    return float(pairs["loss"][0] / pairs["loss"][1]), jax.device_get(gradient)


@pytest.fixture(scope="module")
def single():
    return gradients(1, (1, 1, 1))


@pytest.mark.each_run("4")
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_micro_batches_of_ragged_rows_give_the_same_gradient_with_smoothing(parts, single):
    loss, gradient = gradients(parts, (1, 1, 1))
    np.testing.assert_allclose(loss, single[0], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), gradient, single[1])


@pytest.fixture(scope="module")
def single_with_padding():
    return gradients(1, (1, 1, 1), 0.3, slice(2, 4))


@pytest.mark.each_run("mesh1")
@pytest.mark.parametrize("mesh", [(8, 1, 1), (2, 2, 2), (1, 8, 1)])
def test_loss_and_gradient_do_not_depend_on_the_mesh_with_a_shard_of_padding(
    mesh, single_with_padding
):
    """Dropout is on; on eight data shards rows 2 and 3 are one device's whole share."""
    loss, gradient = gradients(1, mesh, 0.3, slice(2, 4))
    np.testing.assert_allclose(loss, single_with_padding[0], rtol=2e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradient, single_with_padding[1]
    )


def test_bfloat16_compute_keeps_float32_parameters_and_moments_and_they_move():
    config = tiny_config(
        model__dtype="bfloat16", optimizer__learning_rate=1e-4, optimizer__schedule="constant"
    )
    trainer = make_trainer(config, 1)
    state = trainer.init()
    before = jax.device_get(state.params)
    batches = trainer.task.train_batches()
    for _ in range(200):
        state, _ = trainer.train_step(state, trainer.place(next(batches)))
    batches.close()
    floats = [x.dtype for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert set(floats) == {jnp.dtype("float32")}
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), before, jax.device_get(state.params))
    used = [
        m
        for path, m in jax.tree_util.tree_flatten_with_path(moved)[0]
        if "key" not in str(path[-2])
    ]
    assert min(used) > 1e-3


def test_dropout_differs_between_steps_and_micro_batches():
    seen = []

    def loss(params, batch, key):
        seen.append(None)
        return {"loss": (params["w"] * jax.random.uniform(key), jnp.float32(1.0))}

    params = {"w": jnp.float32(1.0)}
    batch = {"x": jnp.zeros((4, 1))}
    one = [
        loss_and_gradient(loss, params, batch, jax.random.key(step), parts, MESH)[1]["w"]
        for step in range(2)
        for parts in (1, 4)
    ]
    assert len({float(x) for x in one}) == 4
    # Four micro-batches with one mask would give four times the first one's.
    first = jax.random.uniform(jax.random.fold_in(jax.random.key(0), 0))
    assert abs(float(one[1]) - float(first)) > 1e-3


def test_batch_rows_lie_on_data_and_fsdp():
    trainer = make_trainer(tiny_config(**{"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}))
    batch = trainer.place(next(trainer.task.train_batches()))
    assert batch["source"].sharding == NamedSharding(trainer.mesh, P(ROW_AXES))
    query = trainer.state_shardings.params["encoder"]["layer_0"]["attention"]["query"]["kernel"]
    assert query.spec == P("fsdp", "tensor")


def test_adam_moments_are_laid_as_their_parameters():
    trainer = make_trainer(tiny_config(**{"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}))
    states = jax.tree.leaves(
        trainer.state_shardings.opt_state, is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState)
    )
    adam = next(s for s in states if isinstance(s, optax.ScaleByAdamState))
    assert adam.mu == trainer.state_shardings.params == adam.nu
