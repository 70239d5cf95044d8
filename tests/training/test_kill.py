"""A real process killed at random moments, saves included, ends as the undisturbed one does."""

import multiprocessing
import os
import random
import signal
import sys
import time

import jax
import numpy as np
import pytest

from tests.tiny import read_metrics, tiny_config
from transformer_lab.training import runs
from transformer_lab.training.checkpoint import Checkpoints

STEPS = 160
PROCESSES = multiprocessing.get_context("forkserver")  # which has loaded all modules before a fork
PROCESSES.set_forkserver_preload(["tests.tiny"])


def train(workdir, log):
    """One device, as a user on one CPU has it."""
    os.environ.pop("XLA_FLAGS", None)
    sys.stderr = open(log, "a", encoding="utf-8")  # noqa: SIM115  closed with the process
    runs.run(tiny_config(steps=STEPS, save_every=2, log_every=10, keep=2), workdir)


def start(workdir):
    process = PROCESSES.Process(target=train, args=(workdir, workdir.with_suffix(".log")))
    process.start()
    return process


def saved_steps(workdir):
    return sorted(p.parent.name for p in workdir.glob("checkpoints/*/manifest.json"))


def kill_somewhere(workdir, rng):
    """Waits for the process to save anew, then kills it some milliseconds later."""
    before, process = saved_steps(workdir), start(workdir)
    while process.is_alive() and saved_steps(workdir) == before:
        time.sleep(0.005)
    time.sleep(rng.uniform(0.0, 0.15))
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def finish(workdir):
    process = start(workdir)
    process.join(timeout=300)
    errors = workdir.with_suffix(".log").read_text(encoding="utf-8")
    assert process.exitcode == 0, errors[-2000:]
    return errors


def outcome(workdir):
    checkpoints = Checkpoints(workdir, 2, lambda line: None)
    params = checkpoints.restore_params(checkpoints.good_steps()[-1])
    steps = checkpoints.good_steps()
    checkpoints.close()
    losses = [(m["step"], m["loss"]) for m in read_metrics(workdir) if "loss" in m]
    return steps, params, losses


@pytest.mark.parametrize("count", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_kills_change_no_bit_of_the_final_parameters(count, tmp_path):
    rng = random.Random(0)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(whole)
    kills = sum(kill_somewhere(killed, rng) for _ in range(count))
    assert kills == count, "a process had finished before it was killed: raise STEPS"
    assert "resumes at step" in finish(killed)
    (steps, params, losses), (want_steps, want, want_losses) = outcome(killed), outcome(whole)
    assert steps == want_steps and steps[-1] == STEPS
    assert losses == want_losses
    jax.tree.map(np.testing.assert_array_equal, params, want)
