"""Images/s of the host pipeline with 0, 1 and 2 worker processes beside the train step's rate.

    python -m benchmarks.host_images
    python -m benchmarks.host_images --config=configs/cnn_fashion_mnist.py --rounds=5

The pipeline reads, augments and batches as a run does; the slower of the two limits that run. All
takes turns in one process; what was read ahead between the turns does not count.
"""

import argparse
import importlib.util
import statistics
import time

import jax

from benchmarks.common import report
from transformer_lab.training import runs
from transformer_lab.training.config import resolve
from transformer_lab.training.mesh import make_mesh
from transformer_lab.training.trainer import Trainer

WORKERS = (0, 1, 2)
AHEAD = 24  # batches that threads and processes may have ready


def make_trainer(path: str, workers: int, share: float) -> Trainer:
    """The trainer of a config file."""
    spec = importlib.util.spec_from_file_location("config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    config.batch.workers, config.data.share = workers, share
    resolved = resolve(config)
    mesh = make_mesh(resolved.run.mesh)
    return Trainer(resolved.run, runs.build_task(resolved, None, mesh), mesh)


def seconds(take, count: int, before: int) -> float:
    """Of so many calls, after others that are not counted; waits for the last result."""
    for _ in range(before):
        out = take()
    jax.block_until_ready(out)
    began = time.perf_counter()
    for _ in range(count):
        out = take()
    jax.block_until_ready(out)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="configs/vit_fashion_mnist.py")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=100, help="batches a turn")
    parser.add_argument("--steps", type=int, default=4, help="train steps a turn")
    parser.add_argument("--share", type=float, default=1.0, help="of the training set")
    parser.add_argument("--append", help="a file that gets the results as table rows")
    args = parser.parse_args()
    trainers = {workers: make_trainer(args.config, workers, args.share) for workers in WORKERS}
    sources = {workers: trainer.task.train_batches() for workers, trainer in trainers.items()}
    trainer, state = trainers[0], trainers[0].init()
    batch = trainer.place(next(sources[0]))

    def step():
        nonlocal state
        state, out = trainer.train_step(state, batch)
        return out

    turns = {f"{w} workers": (sources[w].__next__, args.batches, AHEAD) for w in WORKERS}
    turns["train step"] = (step, args.steps, 1)
    rates: dict[str, list[float]] = {name: [] for name in turns}
    rows = trainer.task.batch.rows
    for _ in range(args.rounds):
        for name, turn in turns.items():
            rates[name].append(rows * turn[1] / seconds(*turn))
    for batches in sources.values():
        batches.close()
    found = ", ".join(f"{name} {statistics.median(r):,.0f}" for name, r in rates.items())
    report(f"host_images {args.config}", f"images/s: {found}", args.append)


if __name__ == "__main__":  # worker processes import this file
    main()
