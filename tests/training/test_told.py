"""Losses and statistics that modules tell: through scan, remat, micro-batches and meshes."""

import functools
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.errors import LabError
from transformer_lab.layers.scanned import make_layers, run_layers
from transformer_lab.layers.told import renew, running, tell
from transformer_lab.models import listened
from transformer_lab.models.model import Model
from transformer_lab.ops.losses import STATISTICS, masked_sum
from transformer_lab.ops.stacked import stack_layers, unstack_layers
from transformer_lab.tasks.base import Joint
from transformer_lab.training.config import MeshConfig
from transformer_lab.training.mesh import make_mesh, placer
from transformer_lab.training.state import loss_and_gradient, renewed


@dataclass(frozen=True)
class Config:
    """Three layers of width 4."""

    scan_layers: bool = False
    remat: str = "off"
    layers: int = 3
    width: int = 4


class Layer(nn.Module):
    """x + tanh(x W), which tells its mean square and keeps the mean of its outputs."""

    config: Config

    @nn.compact
    def __call__(self, x, mask):
        x = x + jnp.tanh(nn.Dense(self.config.width, name="dense")(x))
        count = mask.sum(dtype=jnp.float32)
        tell(self, "square", jnp.where(mask, (x**2).mean(axis=-1), 0.0).sum(), count, 0.1)
        tell(self, "size", jnp.where(mask, jnp.abs(x).sum(axis=-1), 0.0).sum(), count)
        old = running(self, "mean", lambda: jnp.zeros(self.config.width))
        mean = jnp.where(mask[..., None], x, 0.0).sum((0, 1)) / jnp.maximum(count, 1)
        renew(self, "mean", 0.9 * old + 0.1 * mean, count)
        return x


class Net(Model):
    """The layers over one another."""

    config: Config

    def setup(self):
        make_layers(self, [functools.partial(Layer, self.config)] * self.config.layers)

    def __call__(self, x, mask):
        return run_layers(self, x, lambda i: (mask,))


ROWS = np.random.default_rng(0)
BATCH = {
    "x": ROWS.normal(size=(16, 5, 4)).astype(np.float32),
    "real": np.arange(5) < ROWS.integers(1, 6, size=(16, 1)),  # what the layers count
    "mask": np.arange(5) < ROWS.integers(0, 6, size=(16, 1)),  # what the loss counts
}
INPUTS = np.zeros((1, 5, 4), np.float32), np.ones((1, 5), bool)
PARAMS = jax.jit(Net(Config()).init)(jax.random.key(0), *INPUTS)["params"]


def loss_of(config):
    def loss(params, batch, key):
        out = Net(config).apply({"params": params}, batch["x"], batch["real"])
        return {"loss": masked_sum((out**3).sum(axis=-1), batch["mask"])}

    return loss


def joint_of(config):
    def embed(params, batch, key):
        return {"x": Net(config).apply({"params": params}, batch["x"], batch["real"])}

    def compare(params, vectors, batch):
        return {"loss": masked_sum((vectors["x"] ** 3).sum(axis=-1), batch["mask"])}

    return Joint(embed, compare)


def by_hand(params):
    """Loss, sums that are told and new statistics, in plain words and without any channel."""
    x, real, mask = BATCH["x"], BATCH["real"], BATCH["mask"]
    square, size, means = 0.0, 0.0, {}
    for i in range(3):
        name = f"layer_{i}"
        x = x + jnp.tanh(x @ params[name]["dense"]["kernel"] + params[name]["dense"]["bias"])
        square += (x**2).mean(axis=-1)[real].sum()
        size += jnp.abs(x).sum(axis=-1)[real].sum()
        means[name] = 0.1 * x[real].mean(axis=0)
    loss = (x**3).sum(axis=-1)[mask].sum() / mask.sum()
    return loss + 0.1 * square / (3 * real.sum()), (loss, square, size, means)


@functools.cache
def wanted():
    return jax.value_and_grad(by_hand, has_aux=True)(PARAMS)


@pytest.mark.each_run(
    "False-off-False-1-1-loss_of",
    "True-dots-True-4-1-loss_of",
    "True-off-True-2-8-loss_of",
    "True-off-False-2-8-joint_of",
)
@pytest.mark.parametrize("objective", [loss_of, joint_of])
@pytest.mark.parametrize(
    ("scan", "remat", "stacked", "parts", "devices"),
    [
        (False, "off", False, 1, 1), (True, "off", False, 1, 1), (False, "nothing", False, 4, 1),
        (True, "dots", True, 4, 1), (True, "off", True, 2, 8), (True, "off", False, 2, 8),
    ],
)  # fmt: skip
def test_what_is_told_is_the_same_in_any_layout(scan, remat, stacked, parts, devices, objective):
    (_, (loss, square, size, means)), slopes = wanted()
    config = Config(scan, remat)
    params = stack_layers(PARAMS, config) if stacked else PARAMS
    mesh = make_mesh(MeshConfig(data=-1), devices)
    trained = {name: x for name, x in params.items() if name != STATISTICS}

    def step(trained, batch):
        whole = lambda p: {**p, STATISTICS: params[STATISTICS]}  # noqa: E731
        inner = objective(config)
        call = lambda p, batch, key: inner(whole(p), batch, key)  # noqa: E731
        if isinstance(inner, Joint):
            call = Joint(
                lambda p, batch, key: inner.embed(whole(p), batch, key),
                lambda p, vectors, batch: inner.compare(whole(p), vectors, batch),
            )
        return loss_and_gradient(call, trained, batch, jax.random.key(0), parts, mesh)

    pairs, gradient = jax.jit(step)(trained, placer(mesh)(BATCH))
    statistics = renewed(params[STATISTICS], pairs.pop(STATISTICS))
    ratios = {name: float(total / weight) for name, (total, weight) in pairs.items()}
    count = 3 * BATCH["real"].sum()
    assert ratios == pytest.approx(
        {"loss": float(loss), "square": float(square / count), "size": float(size / count)},
        rel=1e-5,
    )
    slopes = {name: x for name, x in slopes.items() if name != STATISTICS}
    near = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5)  # noqa: E731
    jax.tree.map(near, unstack_layers(gradient), slopes)
    jax.tree.map(near, unstack_layers(statistics), {n: {"mean": x} for n, x in means.items()})


def test_weights_of_micro_batches_cost_no_pass_more():
    """The first pass over the micro-batches computes the weights alone: no product is in it."""
    mesh, flops = make_mesh(MeshConfig(data=1), 1), {}
    for telling in (True, False):
        loss = loss_of(Config(scan_layers=True))
        if not telling:
            loss = lambda params, batch, key, told=loss: listened(told)(params, batch, key)[0]  # noqa: E731
        step = lambda p, b, loss=loss: loss_and_gradient(loss, p, b, jax.random.key(0), 4, mesh)  # noqa: E731
        text = jax.jit(step).lower(PARAMS, BATCH).compile().as_text()
        flops[telling] = text.count(" dot(")
    assert flops[True] == flops[False] > 0


@pytest.mark.slow
def test_evaluation_tells_nothing_and_a_name_of_the_tasks_own_is_refused():
    config, mesh = Config(), make_mesh(MeshConfig(data=1), 1)
    batch = jax.tree.map(jnp.asarray, BATCH)
    call = lambda: Net(config).apply({"params": PARAMS}, batch["x"], batch["real"])  # noqa: E731
    heard, told = listened(call)()
    np.testing.assert_array_equal(heard, call())
    assert told["losses"].keys() == {"square", "size"}
    both = lambda p, b, key: {**loss_of(config)(p, b, key), "size": (1.0, 1.0)}  # noqa: E731
    with pytest.raises(LabError, match=r"tells \['size'\]"):
        loss_and_gradient(both, PARAMS, batch, jax.random.key(0), 1, mesh)
