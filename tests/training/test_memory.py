"""Memory that is not there ends in one line that says what to change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import make_trainer, tiny_config
from transformer_lab import cli
from transformer_lab.errors import LabError
from transformer_lab.training import chips, runs
from transformer_lab.training.loop import describe


def test_a_model_that_no_device_can_hold_is_refused_before_it_is_made(tmp_path):
    config = tiny_config(**{"mesh.data": -1, "model.feed_forward_width": 10**9})
    with pytest.raises(LabError, match=r"^a device would hold [\d,.]+ GB .* mesh.fsdp"):
        runs.run(config, tmp_path)


def test_a_state_is_counted_as_each_device_holds_it(monkeypatch):
    trainer = make_trainer(tiny_config(**{"mesh.data": 2, "mesh.fsdp": 4}))
    state = trainer.init()
    own = [
        sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))
        for tree in (state, state.params)
    ]
    monkeypatch.setattr(chips, "available", lambda: float(sum(own)))
    chips.refuse_too_large(trainer.step_state)
    monkeypatch.setattr(chips, "available", lambda: float(sum(own) - 1))
    with pytest.raises(LabError, match="^a device would hold"):
        chips.refuse_too_large(trainer.step_state)


def test_memory_that_runs_out_on_host_or_device_is_one_line_and_other_errors_are_none():
    for take in (lambda: jnp.zeros(10**13).block_until_ready(), lambda: np.zeros(10**16)):
        with pytest.raises((MemoryError, jax.errors.JaxRuntimeError)) as caught:
            take()
        line = cli.out_of_memory(caught.value)
        assert line.startswith("out of memory (") and "\n" not in line
        assert all(key in line for key in ("batch.", "micro_batches", "model.remat"))
    assert cli.out_of_memory(ValueError("no")) == ""


def test_a_warm_up_that_outlasts_the_run_is_said_at_its_start():
    said: list[str] = []
    describe(make_trainer(tiny_config(**{"optimizer.warmup_steps": 10}), 1), said.append)
    assert any("warm-up of 10 steps does not end" in line for line in said)
    said.clear()
    describe(make_trainer(tiny_config(), 1), said.append)
    assert not any("warm-up" in line for line in said)
