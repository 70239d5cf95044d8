"""A real process killed at random moments, saves included, ends as the undisturbed one does."""

import random
import signal
import time

import jax
import numpy as np
import pytest

from tests.forked import started
from tests.tasks.test_language_modeling import tiny_model
from tests.tiny import read_metrics
from transformer_lab.training import runs
from transformer_lab.training.checkpoint import Checkpoints


def train(workdir, steps):
    runs.run(tiny_model(steps=steps, save_every=2, log_every=10, keep=2), workdir)


def start(workdir, steps):
    return started(train, workdir, steps, log=workdir.with_suffix(".log"))


def saved_steps(workdir):
    return sorted(p.parent.name for p in workdir.glob("checkpoints/*/manifest.json"))


def kill_somewhere(workdir, steps, rng):
    """Waits for the process to save anew, then kills it some milliseconds later."""
    before, process = saved_steps(workdir), start(workdir, steps)
    while process.is_alive() and saved_steps(workdir) == before:
        time.sleep(0.005)
    time.sleep(rng.uniform(0.0, 0.15))
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def finish(workdir, steps):
    process = start(workdir, steps)
    process.join(timeout=300)
    errors = workdir.with_suffix(".log").read_text(encoding="utf-8")
    assert process.exitcode == 0, errors[-2000:]
    return errors


def outcome(workdir):
    with Checkpoints(workdir, 2, lambda line: None) as checkpoints:
        steps = checkpoints.newest()
        params = checkpoints.restore_params(steps[-1])
    losses = [(m["step"], m["loss"]) for m in read_metrics(workdir) if "loss" in m]
    return steps, params, losses


@pytest.mark.parametrize(
    ("count", "steps"), [(3, 44), pytest.param(10, 160, marks=pytest.mark.slow)]
)
def test_kills_change_no_bit_of_the_final_parameters(count, steps, tmp_path):
    rng = random.Random(0)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(whole, steps)
    kills = sum(kill_somewhere(killed, steps, rng) for _ in range(count))
    assert kills == count, "a process had finished before it was killed: raise its steps"
    assert "resumes at step" in finish(killed, steps)
    (saved, params, losses), (want_saved, want, want_losses) = outcome(killed), outcome(whole)
    assert saved == want_saved and saved[-1] == steps
    assert losses == want_losses
    jax.tree.map(np.testing.assert_array_equal, params, want)
