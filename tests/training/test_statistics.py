"""BatchNorm's running statistics in the train state: updated, saved, trained by no gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.models import listened
from transformer_lab.models.cnn import CNNConfig, build, example_inputs
from transformer_lab.ops.losses import STATISTICS, cross_entropy, masked_sum
from transformer_lab.tasks.base import Task
from transformer_lab.training.adapting import split
from transformer_lab.training.checkpoint import Checkpoints
from transformer_lab.training.config import AdaptConfig, MeshConfig, OptimizerConfig, RunConfig
from transformer_lab.training.mesh import make_mesh
from transformer_lab.training.trainer import Trainer

CONFIG = CNNConfig(stages=(1,), width=4, stem="small", image_size=(4, 4), channels=1, classes=3)


class Pictures(Task):
    """A task on random images; every batch ends in rows of padding."""

    model, model_config = build(CONFIG), CONFIG

    def __init__(self):
        """It has no sections and no data."""

    def eval_batches(self, split):
        return iter([batch(0)])

    def abstract_batch(self):
        return {name: (x.shape, x.dtype) for name, x in batch(0).items()}

    def init(self, key):
        return self.model.init(key, *example_inputs())["params"]

    def loss(self, params, batch, dropout_key):
        out = self.model.apply({"params": params}, batch["image"], dropout_key, batch["real"])
        return {"loss": masked_sum(cross_entropy(out["logits"], batch["label"]), batch["real"])}

    def metrics(self, params, batch):
        out = self.model.apply({"params": params}, batch["image"])
        return {"loss": masked_sum(cross_entropy(out["logits"], batch["label"]), batch["real"])}


def batch(step):
    rng = np.random.default_rng(step)
    return {
        "image": rng.normal(size=(16, 4, 4, 1)).astype(np.float32),
        "label": rng.integers(3, size=16).astype(np.int32),
        "real": np.arange(16) < 13,
    }


@jax.jit
def statistics(params, images, real):
    """Those that a call in training tells, times its real rows."""
    call = listened(Pictures.model.apply)
    _, told = call({"params": params}, images, jax.random.key(0), real)
    return told["statistics"]


@functools.cache
def trainer(devices=1, parts=1):
    optimizer = OptimizerConfig(
        learning_rate=0.05, warmup_steps=1, schedule="constant", weight_decay=0.1
    )
    run = RunConfig(steps=4, micro_batches=parts, optimizer=optimizer)
    return Trainer(run, Pictures(), make_mesh(MeshConfig(), devices))


def steps(trainer, state, first, last):
    for step in range(first, last):
        state, metrics = trainer.train_step(state, trainer.place(batch(step)))
    assert metrics.keys() >= {"loss", "grad_norm"} and STATISTICS not in metrics
    return state


@pytest.fixture(scope="module")
def single():
    one = trainer()
    return jax.device_get(steps(one, one.init(), 0, 2))


def test_the_step_moves_statistics_as_the_model_says_and_the_optimizer_knows_none(single):
    one = trainer()
    first = jax.device_get(one.init())
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(single)]
    assert any(STATISTICS in path for path in paths)
    assert not [path for path in paths if "opt_state" in path and STATISTICS in path]
    told = statistics(first.params, batch(0)["image"], batch(0)["real"])
    state = steps(one, one.init(), 0, 1)

    def compare(new, told):
        total, rows = told
        assert rows == 13
        np.testing.assert_allclose(new, total / 13, atol=1e-6)

    jax.tree.map(compare, jax.device_get(state.params[STATISTICS]), told)
    moved = jax.tree.map(
        lambda a, b: np.abs(a - b).max(), first.params[STATISTICS], single.params[STATISTICS]
    )
    assert min(jax.tree.leaves(moved)) > 1e-3


def test_statistics_and_steps_on_eight_devices_are_those_of_one_with_a_shard_of_padding(single):
    eight = trainer(8)  # rows 14 and 15 are the last device's
    state = jax.device_get(steps(eight, eight.init(), 0, 2))
    compare = lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5)  # noqa: E731
    jax.tree.map(compare, state.params, single.params)


def test_statistics_of_micro_batches_weigh_their_real_rows():
    """Part j holds rows j, j + 2, ...: seven and six real ones."""
    two = trainer(parts=2)
    first = jax.device_get(two.init())
    state = jax.device_get(steps(two, two.init(), 0, 1))
    rows = batch(0)
    parts = [statistics(first.params, rows["image"][j::2], rows["real"][j::2]) for j in range(2)]

    def compare(new, first, second):
        assert [float(weight) for _, weight in (first, second)] == [7, 6]
        np.testing.assert_allclose(new, (first[0] + second[0]) / 13, atol=1e-6)

    jax.tree.map(compare, state.params[STATISTICS], *parts)


def test_a_batch_of_padding_alone_changes_no_statistic_and_gives_no_nan():
    one = trainer()
    first = jax.device_get(one.init())
    empty = batch(0) | {"real": np.zeros(16, bool)}
    state, metrics = one.train_step(one.init(), one.place(empty))
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.device_get(state.params[STATISTICS]),
        first.params[STATISTICS],
    )
    assert metrics["grad_norm"] == 0 and metrics["loss"] == 0


def test_a_resumed_run_has_the_same_bits_and_evaluates_with_its_statistics(tmp_path):
    one = trainer()
    state = steps(one, one.init(), 0, 2)
    with Checkpoints(tmp_path, 1) as checkpoints:
        checkpoints.save(2, state, {}, {}, {})
        checkpoints.wait()
        restored = checkpoints.restore(2, one.abstract_state)
        alone = checkpoints.restore_params(2)
    whole = jax.device_get(steps(one, state, 2, 4))
    resumed = jax.device_get(steps(one, restored, 2, 4))
    jax.tree.map(np.testing.assert_array_equal, whole, resumed)
    assert STATISTICS in alone
    loss = lambda params: one.eval_step(params, one.place(batch(9)))["loss"][0]  # noqa: E731
    plain = jax.tree.map(jnp.asarray, whole.params)
    other = plain | {STATISTICS: jax.tree.map(lambda x: x + 1, plain[STATISTICS])}
    assert loss(plain) != loss(other)


def test_an_adapted_run_keeps_statistics_beside_what_trains():
    params = Pictures().init(jax.random.key(0))
    trained, frozen = split(params, AdaptConfig(method="head"), jax.random.key(0))
    assert trained.keys() == {"classifier", STATISTICS} and STATISTICS not in frozen
