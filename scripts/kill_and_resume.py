"""Runs that are killed at random moments and resumed end as the undisturbed ones, digit for digit.

    python scripts/kill_and_resume.py --kills=200

Five kinds of run (translation, a language model on packed rows, two towers, images with batch
statistics and worker processes, an adapted model) train on four simulated devices. Each is trained
once undisturbed, then again and again with SIGKILL or SIGTERM at random moments: while it starts,
trains, evaluates, saves or is scored. The same command resumes it. When it has finished, all
numbers of metrics.jsonl, evaluations and final scores too, and every parameter are compared. The
exit code is 0 when all are equal. Needs no network; about ten seconds of two cores a kill.
"""

import argparse
import functools
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
FOLDER = Path(tempfile.mkdtemp(prefix="kill_and_resume_"))
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(FOLDER / "compiled")

import jax  # noqa: E402
import numpy as np  # noqa: E402

from tests.tiny import read_metrics, tiny_config  # noqa: E402
from tests.tiny_emoji import towers_config, write_emoji  # noqa: E402
from transformer_lab.training import runs  # noqa: E402
from transformer_lab.training.checkpoint import Checkpoints  # noqa: E402
from transformer_lab.training.config import default_config  # noqa: E402
from transformer_lab.training.signals import SIGNALS  # noqa: E402

RHYTHM = {
    "steps": 60, "log_every": 1, "eval_every": 7, "save_every": 3, "keep": 2, "mesh.data": -1,
    "tensorboard": False,
}  # fmt: skip
WRITER = {
    "data.source": "patterns", "data.max_documents": 60, "data.validation_share": 0.02,
    "data.test_share": 0.02, "tokenizer.kind": "word", "batch.rows": 8, "batch.length": 16,
    "model.layers": 2, "model.width": 32, "model.heads": 2, "model.head_dim": 16,
    "model.feed_forward_width": 48, "model.max_length": 24, "task.layout": "packed",
    "optimizer.warmup_steps": 2, "task.samples": 0, "optimizer.learning_rate": 1e-2,
}  # fmt: skip
LORA = {"adapt.method": "lora", "adapt.rank": 2, "adapt.dropout": 0.2, "seed": 1}
IMAGES = {
    "data.source": "digits", "data.share": 0.3, "batch.rows": 32, "batch.workers": 2,
    "augment.crop_padding": 1, "augment.flip": 0.5, "augment.cutmix": 1.0,
    "model.stages": (1, 1), "model.width": 8, "model.stem": "small", "optimizer.warmup_steps": 5,
}  # fmt: skip
VOLATILE = ("_per_second", "data_seconds", "goodput", "mfu")


def config_of(kind: str):
    """The config of a kind of run, and what it starts from."""
    base = ""
    if kind == "translation":
        config = tiny_config()
    elif kind == "contrastive":
        config = towers_config(FOLDER / "emoji")
    elif kind == "images":
        config = default_config(model="cnn", task="image_classification")
        config.update_from_flattened_dict(IMAGES)
    else:
        config = default_config(model="decoder", task="language_modeling")
        config.update_from_flattened_dict(WRITER)
        if kind == "adapted":
            config.update_from_flattened_dict(LORA)
            base = str(FOLDER / "language model, whole")
    config.update_from_flattened_dict(RHYTHM)
    return config, base


KINDS = ("translation", "language model", "contrastive", "images", "adapted")


def train(kind: str, workdir: Path) -> None:
    """What `python -m transformer_lab train` does."""
    config, base = config_of(kind)
    runs.run(config, workdir, base)


def compare(workdir: Path, whole: Path) -> None:
    """Raises ValueError with the first number or parameter that differs."""
    numbers = [
        [{k: v for k, v in line.items() if not k.endswith(VOLATILE)} for line in read_metrics(path)]
        for path in (workdir, whole)
    ]
    for ours, theirs in zip(*numbers, strict=True):
        if ours != theirs:
            raise ValueError(f"{ours} is {theirs} in the undisturbed run")
    params = []
    for path in (workdir, whole):
        checkpoints = Checkpoints(path, 2, lambda line: None)
        params.append(checkpoints.restore_params(checkpoints.newest()[-1]))
        checkpoints.close()
    jax.tree.map(np.testing.assert_array_equal, *params)


def start(body: Callable[[], None], log: Path) -> int:
    """Runs a function in a process of its own, which has loaded everything and no device; returns
    its number. The output goes to the file."""
    process = os.fork()
    if process:
        return process
    os.setpgid(0, 0)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    SIGNALS.catch()
    code = 0
    try:
        with SIGNALS.ending():
            body()
    except SystemExit as error:
        code = error.code
    except BaseException as error:  # noqa: B036  the child must not go on as the parent
        print(f"FAILED {type(error).__name__}: {error}", flush=True)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def ends(process: int, within: float) -> int | None:
    """The exit code of a process, minus the signal's number if one killed it; None if it still
    runs after so many seconds."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def phase(said: str) -> str:
    """Where the process was, by what it has said."""
    steps = re.findall(rf"^step (\d+)/{RHYTHM['steps']} ", said, re.MULTILINE)
    if not steps:
        return "while it started"
    return "in the last save or scores" if int(steps[-1]) >= RHYTHM["steps"] else "while it trained"


def must_end(process: int, log: Path) -> None:
    """RuntimeError unless it ends well within ten minutes."""
    code = ends(process, 600)
    if code != 0:
        raise RuntimeError(f"exit code {code}, see {log}: {log.read_text()[-500:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help="of runs, with commas between")
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    rng, counts, finished = random.Random(args.seed), Counter(), Counter()
    write_emoji(FOLDER / "emoji")
    seconds = {}
    for kind in KINDS if "adapted" in kinds else kinds:
        whole, log = FOLDER / f"{kind}, whole", FOLDER / f"{kind}, whole.log"
        must_end(start(functools.partial(train, kind, whole), log), log)
        again, began = FOLDER / f"{kind}, timed", time.monotonic()  # with what is compiled now
        must_end(start(functools.partial(train, kind, again), log), log)
        seconds[kind] = time.monotonic() - began
        must_end(start(functools.partial(compare, again, whole), log), log)
        print(f"{kind}: {seconds[kind]:.1f} seconds undisturbed, twice the same", flush=True)
    for kind, kills in zip(kinds, shares(args.kills, len(kinds)), strict=True):
        while kills:
            workdir, log = FOLDER / f"{kind}, {finished[kind]}", FOLDER / f"{kind}.log"
            while True:
                log.write_text("")
                began = time.monotonic()
                process = start(functools.partial(train, kind, workdir), log)
                wait = rng.uniform(0.05, 0.9) * seconds[kind] if kills else 600
                code = ends(process, wait)
                if code is None:
                    number = rng.choice([signal.SIGKILL, signal.SIGTERM])
                    counts[number.name, phase(log.read_text())] += 1
                    os.kill(process, number)
                    code, kills = ends(process, 60), kills - 1
                    if code == 0 and number == signal.SIGTERM:
                        break  # it came when the last line was written: the run is whole
                    if code not in (-number, 128 + number):
                        raise RuntimeError(f"{kind}: {number.name} ended it with {code}, see {log}")
                elif code:
                    raise RuntimeError(f"{kind}: {code}, see {log}: {log.read_text()[-500:]}")
                else:  # the machine may be quieter now than when the run was timed
                    seconds[kind] = min(seconds[kind], time.monotonic() - began)
                    break
            must_end(
                start(functools.partial(compare, workdir, FOLDER / f"{kind}, whole"), log), log
            )
            finished[kind] += 1
            shutil.rmtree(workdir)
    print(json.dumps({"kills": {f"{a} {b}": n for (a, b), n in sorted(counts.items())}}, indent=1))
    print(f"{sum(counts.values())} kills; runs equal to the undisturbed: {dict(finished)}")
    shutil.rmtree(FOLDER)
    return 0


def shares(count: int, kinds: int) -> list[int]:
    """So many kills over the kinds of run, evenly."""
    return [count // kinds + (i < count % kinds) for i in range(kinds)]


if __name__ == "__main__":
    sys.exit(main())
