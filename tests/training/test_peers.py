"""One run over several processes: the same numbers, files and end as in one."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from absl import flags

from configs import smoke
from transformer_lab import cli
from transformer_lab.data.contents import Plan
from transformer_lab.data.preparing import prepare
from transformer_lab.errors import LabError
from transformer_lab.training.config import resolve
from transformer_lab.training.signals import agreed

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "config": "configs/smoke.py", "config.steps": 12, "config.eval_every": 12,
    "config.save_every": 6, "config.log_every": 4, "config.task.samples": 0,
    "config.task.score_examples": 0,
    "config.model.width": 16, "config.model.heads": 2, "config.model.head_dim": 8,
    "config.model.feed_forward_width": 16, "config.data.test_size": 20, "config.tensorboard": False,
}  # fmt: skip


def start(workdir, devices, *more):
    count = f"--xla_force_host_platform_device_count={devices}"
    arguments = [f"--{key}={value}" for key, value in SETTINGS.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "transformer_lab.train", *arguments, f"--workdir={workdir}", *more],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": count},
        stderr=subprocess.PIPE,
        text=True,
    )


def numbers(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    keys = "loss", "grad_norm", "validation/loss", "test/loss", "test/chrf"
    return [(line["step"], *(line[key] for key in keys if key in line)) for line in lines]


@pytest.mark.parametrize("source", ["reverse", "shards"])
def test_two_processes_find_each_other_and_train_what_one_does(tmp_path, source):
    more = ()
    if source == "shards":  # each process reads its own rows then
        config = smoke.get_config()
        config.data.test_size = 20
        found = resolve(config)
        plan = Plan("translation", found.sections["data"], found.sections["tokenizer"])
        prepare(plan, tmp_path / "data", [].append)
        more = "--config.data.source=shards", f"--config.data.path={tmp_path / 'data'}"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    pair = [start(tmp_path / "two", 1, f"--peers=localhost:{port},2,{i}", *more) for i in range(2)]
    ends = [process.communicate(timeout=600)[1] for process in pair]
    assert [process.returncode for process in pair] == [0, 0], ends
    assert "step 12 test" in ends[0] and "step 12" not in ends[1]  # the first one speaks
    alone = start(tmp_path / "one", 2, *more)
    assert alone.communicate(timeout=600)[1] and alone.returncode == 0
    ours, theirs = numbers(tmp_path / "two"), numbers(tmp_path / "one")
    assert [row[0] for row in ours] == [row[0] for row in theirs] == [4, 8, 12, 12, 12]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    found = sorted(path.name for path in (tmp_path / "two" / "checkpoints").iterdir())
    assert found == sorted(path.name for path in (tmp_path / "one" / "checkpoints").iterdir())


@pytest.mark.parametrize("text", ["host", "host:1,2", "host:1,2,2", "host:x,2,0"])
def test_other_words_for_the_peers_are_refused(text):
    with pytest.raises(LabError, match="neither"):
        cli._find_peers(text)


def test_a_process_alone_stops_when_it_is_told_to():
    assert (agreed(None), agreed(15)) == (0, 15) and flags.FLAGS["peers"].default == ""
