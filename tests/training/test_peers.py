"""One run over several processes: the same numbers, files and end as in one."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from configs.smoke import get_config
from tests.forked import started
from tests.tiny import run_alone
from transformer_lab.data.contents import Plan
from transformer_lab.data.preparing import prepare
from transformer_lab.errors import LabError
from transformer_lab.training import checkpoint, peers, runs
from transformer_lab.training.config import resolve
from transformer_lab.training.state import TrainState

SETTINGS = {
    "config": "configs/smoke.py", "config.steps": 40, "config.eval_every": 40,
    "config.save_every": 40, "config.log_every": 4, "config.task.samples": 0,
    "config.task.score_examples": 0,
    "config.model.width": 16, "config.model.heads": 2, "config.model.head_dim": 8,
    "config.model.feed_forward_width": 16, "config.data.test_size": 20, "config.tensorboard": False,
}  # fmt: skip


def train(workdir, log, *more):
    arguments = [f"--{key}={value}" for key, value in SETTINGS.items()]
    return started(["train", *arguments, f"--workdir={workdir}", *more], log=log)


def address():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


def ends(processes, codes, logs):
    """What the processes said, whose exit codes must be these."""
    for process in processes:
        process.join(timeout=300)
    texts = [log.read_text(encoding="utf-8") for log in logs]
    assert [process.exitcode for process in processes] == codes, texts
    return texts


def numbers(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    keys = "loss", "grad_norm", "validation/loss", "test/loss", "test/chrf"
    return [(line["step"], *(line[key] for key in keys if key in line)) for line in lines]


@pytest.mark.slow
def test_two_processes_stop_when_one_is_told_and_one_alone_goes_on_with_the_same_numbers(
    tmp_path, capfd
):
    config = get_config()
    config.data.test_size = 20
    found = resolve(config)
    plan = Plan("translation", found.sections["data"], found.sections["tokenizer"])
    prepare(plan, tmp_path / "data", [].append)  # each process reads its own rows of it
    more = "--config.data.source=shards", f"--config.data.path={tmp_path / 'data'}"
    where, logs = address(), [tmp_path / f"{i}.log" for i in range(2)]
    pair = [
        train(tmp_path / "two", log, f"--peers={where},2,{i}", *more) for i, log in enumerate(logs)
    ]
    while not (logs[0].exists() and "\nstep 4/" in logs[0].read_text()) and pair[0].is_alive():
        time.sleep(0.02)
    os.kill(pair[1].pid, signal.SIGTERM)
    first, second = ends(pair, [143, 143], logs)
    assert "process 0 of 2 on" in first and "1 of 1 local devices" in first
    assert "SIGTERM: saved at step" in first and "step" not in second  # the first one speaks
    (saved,) = (tmp_path / "two" / "checkpoints").iterdir()
    files = json.loads((saved / "manifest.json").read_text())["files"]
    assert any("process_1/" in name for name in files)
    assert set(files) | {"manifest.json"} == {
        str(p.relative_to(saved)) for p in saved.rglob("*") if p.is_file()
    }
    config = get_config()  # on this process's eight devices
    settings = {k.removeprefix("config."): v for k, v in SETTINGS.items() if k != "config"}
    places = {"data.source": "shards", "data.path": str(tmp_path / "data")}
    config.update_from_flattened_dict(settings | places)
    runs.run(config, tmp_path / "two")
    assert f"resumes at step {int(saved.name[5:])} of 40" in capfd.readouterr().err
    run_alone(config, tmp_path / "one")
    ours, theirs = numbers(tmp_path / "two"), numbers(tmp_path / "one")
    assert [row[0] for row in ours] == [row[0] for row in theirs] == [*range(4, 41, 4), 40, 40]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def talk(index, where, folder):
    """The first of two processes asks and is told; the second one's save fails."""
    peers.join(f"{where},2,{index}", 20)
    print(peers.everyones(3 + index), peers.of_first(lambda: f"from {index}"), file=sys.stderr)
    print(peers.to_first("talk", f"text {index}"), file=sys.stderr)
    (folder / str(index)).mkdir()
    peers.refuse_unshared(folder)
    for call in (
        lambda: peers.refuse_differences(lambda: {"same": 1, "config.seed": index}),
        lambda: peers.refuse_unshared(folder / str(index)),
    ):
        try:
            call()
        except LabError as error:
            print(error, file=sys.stderr, flush=True)
    checkpoints = checkpoint.Checkpoints(folder, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    if index == 1:
        checkpoint.digests = full
    copied = NamedSharding(jax.make_mesh((2,), ("data",)), PartitionSpec())
    zeros = jax.jit(lambda: jax.numpy.zeros(3), out_shardings=copied)()
    try:
        checkpoints.save(1, TrainState(zeros, {"x": zeros}, ()), {}, {}, {})
        checkpoints.wait()
    except LabError as error:
        peers.leave(2, str(error), error, f"error: {error}")


def wait(index, where):
    """The last of three processes dies."""
    peers.join(f"{where},3,{index}", 6)
    peers.everyones(0)
    if index == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(100)


@pytest.mark.slow
def test_processes_tell_each_other_what_differs_who_failed_and_who_was_lost(tmp_path):
    first, second, logs = address(), address(), [tmp_path / f"{i}.log" for i in range(5)]
    shared = tmp_path / "shared"
    shared.mkdir()
    pair = [started(talk, i, first, shared, log=logs[i]) for i in range(2)]
    three = [started(wait, i, second, log=logs[2 + i]) for i in range(3)]
    told = ends(pair, [2, 2], logs[:2])
    for text in told:
        assert "[3, 4] from 0" in text
        assert "config.seed is 0 in process 0 and 1 in process 1" in text
        assert "process 1 does not see what process 0 writes there" in text
    assert "['text 0', 'text 1']" in told[0] and not list(shared.glob(".probe*"))
    line = "error: process 1 ended: checkpoint of step 1 could not be written: [Errno 28] No space"
    assert line in told[0] and not list(shared.glob("checkpoints/*/manifest.json"))
    for text in ends(three, [75, 75, -signal.SIGKILL], logs[2:])[:2]:
        assert "error: lost process 2 of 3; the same command resumes" in text
        assert "***" not in text and "Traceback" not in text


SLURM = {"SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_GPUS_ON_NODE": "8"}
EIGHT = "0,1,2,3,4,5,6,7"


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({}, []),
        ({"CUDA_VISIBLE_DEVICES": EIGHT}, []),
        ({**SLURM, "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, []),
        ({**SLURM, "SLURM_NTASKS_PER_NODE": "2"}, [4, 5, 6, 7]),
        ({**SLURM, "SLURM_NTASKS_PER_NODE": "2", "SLURM_STEP_TASKS_PER_NODE": "8"}, [1]),
        ({**SLURM, "SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2),4"}, [2, 3]),
        ({**SLURM, "SLURM_NTASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": EIGHT}, [4, 5, 6, 7]),
        ({**SLURM, "SLURM_NTASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}, []),
        ({**SLURM, "SLURM_NTASKS_PER_NODE": "8", "CUDA_VISIBLE_DEVICES": "3"}, []),
        ({"SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "2"}, []),  # a node without GPUs
        (
            {
                "OMPI_COMM_WORLD_LOCAL_RANK": "3",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
                "CUDA_VISIBLE_DEVICES": EIGHT,
            },
            [6, 7],
        ),
    ],
)
def test_a_process_takes_its_share_of_its_nodes_devices(environment, share):
    assert peers.local_share(environment) == share


def test_devices_that_do_not_divide_are_refused():
    with pytest.raises(LabError, match="3 processes a node do not share its 8 devices"):
        peers.local_share({**SLURM, "SLURM_NTASKS_PER_NODE": "3"})


@pytest.mark.parametrize("text", ["host", "host:1,2", "host:1,2,2", "host:x,2,0"])
def test_other_words_for_the_peers_are_refused(text):
    with pytest.raises(LabError, match="neither"):
        peers.join(text, 60)


def test_a_process_alone_has_nobody_to_ask():
    peers.refuse_differences(lambda: {"seed": 1})
    peers.refuse_unshared(Path("nowhere"))
    assert peers.everyones(15) == [15] and peers.of_first(lambda: "x") == "x"
    assert peers.to_first("name", "x") == ["x"] and not peers.joined()
