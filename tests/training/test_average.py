"""The moving average of a run's parameters: what it is, and that a run's users get it."""

import jax
import numpy as np
import pytest

from tests.tiny import make_trainer, read_metrics, tiny_config
from transformer_lab.errors import LabError
from transformer_lab.training import runs
from transformer_lab.training.checkpoint import Checkpoints
from transformer_lab.training.sources import open_source

DEVICES = 1


def config(**changes):
    values = {"ema_decay": 0.25, "steps": 5, "save_every": 1, "keep": 6, "data.test_size": 0}
    return tiny_config(**values | changes)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A run that was stopped after three steps, resumed with scanned layers, and ended."""
    workdir = tmp_path_factory.mktemp("averaged")
    runs.run(config(steps=3), workdir)
    runs.run(config(**{"model.scan_layers": True}), workdir)
    return workdir


@pytest.fixture(scope="module")
def states(averaged):
    trainer = make_trainer(config(), 1)
    with Checkpoints(averaged, 6) as checkpoints:
        found = [checkpoints.restore(step, trainer.abstract_state) for step in range(1, 6)]
    return jax.device_get([trainer.init(), *found])


@pytest.mark.slow
def test_the_average_follows_its_rule_through_a_stop(states):
    average = states[0].average
    for step, state in enumerate(states[1:], 1):
        decay = min(0.25, (1 + step) / (10 + step))  # 2/11 and 3/12, then the config's
        average = jax.tree.map(lambda a, p, d=decay: d * a + (1 - d) * p, average, state.params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), average, states[-1].average
    )


@pytest.mark.slow
def test_the_average_is_what_is_evaluated_opened_and_started_from(averaged, states):
    trainer, params = runs.open_run(config(), averaged)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), states[-1].average)
    jax.tree.map(
        np.testing.assert_array_equal, open_source(str(averaged)).params, states[-1].average
    )
    loss = trainer.evaluate(params, "validation")["loss"]
    lines = read_metrics(averaged)
    assert [x["validation/loss"] for x in lines if "validation/loss" in x][-1] == pytest.approx(
        loss
    )
    raw = trainer.evaluate(trainer.whole(states[-1].replace(average={})), "validation")["loss"]
    assert abs(raw - loss) > 1e-4


def test_a_decay_outside_its_range_is_refused():
    with pytest.raises(LabError, match=r"ema_decay = 1.0 is not in \[0, 1\)"):
        make_trainer(config(ema_decay=1.0))
