"""Targets at some positions: losses and scores by hand, models of every kind, refusals."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import config_of, make_trainer, trained
from transformer_lab.data.sequences import make
from transformer_lab.models import costs, parameter_shapes
from transformer_lab.training.config import resolve

SMALL = {
    "optimizer.learning_rate": 1e-2, "optimizer.warmup_steps": 5,
    "data.source": "selective_copying", "data.length": 10, "data.remembered": 2,
    "data.vocabulary": 5, "data.train_size": 400, "data.validation_size": 9, "data.test_size": 21,
    "data.other_size": 13, "batch.rows": 8, "model.layers": 2, "model.width": 16,
    "model.max_length": 20, "model.dropout": 0.0,
}  # fmt: skip
STACK = {
    "model.heads": 2, "model.head_dim": 8, "model.feed_forward_width": 24,
    "model.mixer.inner_width": 16, "model.mixer.state": 4, "model.mixer.step_rank": 2,
    "model.mixer.state_heads": 2, "model.positions": "none",
}  # fmt: skip
PATH = Path(__file__).parents[2] / "configs" / "long_range.py"


def trainer_of(kinds=(), model="decoder", **changes):
    stack = STACK | {"model.layer_kinds": kinds} if model == "decoder" else {}
    return make_trainer(config_of(model, "sequence_targets", SMALL, stack, **changes), 1)


@pytest.fixture(scope="module")
def trainer():
    return trainer_of(("mamba/none", "attention"), task__other_lengths=(20,))


@pytest.fixture(scope="module")
def params(trainer):
    return trained(trainer, 50)[0]


def by_hand(task, params, rows):
    """Nats, share of right targets and of right rows, from whole logits."""
    logits = jax.jit(task.model.apply)({"params": params}, jnp.asarray(rows.tokens, jnp.int32))
    nats, right = -np.asarray(jax.nn.log_softmax(logits)), np.asarray(logits).argmax(axis=-1)
    each, whole = [], []
    for n, (targets, mask) in enumerate(zip(rows.targets, rows.mask, strict=True)):
        at = np.flatnonzero(mask)
        each += [(nats[n, i, targets[i]], right[n, i] == targets[i]) for i in at]
        whole.append(all(right[n, i] == targets[i] for i in at))
    return *np.mean(each, axis=0), np.mean(whole)


@pytest.mark.slow
def test_evaluation_is_that_of_the_logits_at_the_targets_alone(trainer, params):
    loss, accuracy, exact = by_hand(trainer.task, params, trainer.task.data.test)
    found = trainer.evaluate(params, "test")
    assert found["loss"] == pytest.approx(loss, rel=1e-5) and loss < 0.9 * np.log(3)
    assert found["accuracy"] == pytest.approx(accuracy) and found["exact"] == pytest.approx(exact)
    assert 0 < exact < accuracy < 1
    zeros = jax.tree.map(jnp.zeros_like, params)
    assert trainer.evaluate(zeros, "test")["loss"] == pytest.approx(np.log(5), rel=1e-5)


def test_the_finished_model_is_scored_at_other_lengths_and_beside_the_commonest_target(
    trainer, params
):
    task = trainer.task
    found = task.score(params, "test", trainer.place, True).values
    assert found.keys() == {"accuracy_20", "majority_baseline"}
    longer = make(task.sections["data"], "test", 20, 13)
    assert found["accuracy_20"] == pytest.approx(by_hand(task, params, longer)[1])
    shapes = [batch["tokens"].shape for batch in task._batches(longer)]
    assert shapes == [(4, 20)] * 4  # half as many of twice the length
    train, test = task.data.train.targets[:, -2:], task.data.test.targets[:, -2:]
    assert found["majority_baseline"] == (test == np.bincount(train.ravel()).argmax()).mean()
    assert task.score(params, "test", trainer.place, False).values == {}


@pytest.mark.each_run("decoder-kinds1")
@pytest.mark.parametrize(
    ("model", "kinds"),
    [("decoder", ("rwkv/shifted",)), ("decoder", ("mamba2/none", "linear")), ("recurrent", ())],
)
def test_models_of_every_kind_learn(model, kinds):
    changes = {} if model == "decoder" else {"model__embedding_width": 16, "model__cell": "lstm"}
    changes["model__layers"] = max(len(kinds), 1)
    _, losses = trained(trainer_of(kinds, model, **changes), 40)
    assert np.mean(losses[-5:]) < 1.3 < 1.5 < losses[0]


def test_the_models_that_are_compared_have_parameters_within_five_percent():
    spec = importlib.util.spec_from_file_location(PATH.stem, PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    counts = {}
    for model in ("attention", "lstm", "mamba2", "hybrid"):
        config = resolve(module.get_config(f"{model}+listops"))
        settings = replace(config.model, vocab_size=15)
        counts[model] = costs.count(parameter_shapes(config.model_kind, settings))
    for model, count in counts.items():
        assert abs(count / counts["attention"] - 1) < 0.05, model


@pytest.mark.parametrize(("parameters", "width"), [(1, 2), (60, 2), (900, 10), (10**6, 316)])
def test_the_nearest_width_is_found(parameters, width, monkeypatch):
    leaf = lambda kind, width: {"a": jax.ShapeDtypeStruct((10, width, width), float)}  # noqa: E731
    monkeypatch.setattr(costs, "parameter_shapes", leaf)
    assert costs.width_near("", lambda width: width, parameters) == width
