"""A real process killed at random moments, saves included, ends as the undisturbed one does."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.tiny import read_metrics
from transformer_lab.training.checkpoint import Checkpoints

ROOT = Path(__file__).parents[2]
STEPS = 160
CODE = """
import sys
from pathlib import Path
from tests.tiny import tiny_config
from transformer_lab.training import runs
config = tiny_config(steps={steps}, save_every=2, log_every=10, keep=2)
runs.run(config, Path(sys.argv[1]))
"""


def start(workdir):
    """One device, as a user on one CPU has it."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    command = [sys.executable, "-c", CODE.format(steps=STEPS), str(workdir)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment, **quiet)


def saved_steps(workdir):
    return sorted(p.parent.name for p in workdir.glob("checkpoints/*/manifest.json"))


def kill_somewhere(workdir, rng):
    """Waits for the process to save anew, then kills it some milliseconds later."""
    before, process = saved_steps(workdir), start(workdir)
    while process.poll() is None and saved_steps(workdir) == before:
        time.sleep(0.005)
    time.sleep(rng.uniform(0.0, 0.15))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def finish(workdir):
    process = start(workdir)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-2000:]
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
