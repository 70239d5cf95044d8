"""Training speed: our compiled step beside a bare Flax script, and the loop beside our step.

    python -m benchmarks.train_step --size=default
    python -m benchmarks.train_step --size=gpt_12m
    python -m benchmarks.train_step --config=configs/gpt2_small.py

The last two time a decoder beside PyTorch (torch.compile) where that is installed.
All that is compared takes turns in one process: the speed of a shared machine drifts by more than
the differences that are looked for.
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from benchmarks import bare, train_gpt
from benchmarks.common import (
    BOS,
    SIZES,
    SMOOTHING,
    Size,
    interleave,
    make_batch,
    matmul_turn,
    model_config,
    paired,
    report,
)
from transformer_lab.models.encoder_decoder import build
from transformer_lab.ops.losses import token_metrics
from transformer_lab.tasks.base import Scores
from transformer_lab.training.config import MeshConfig, OptimizerConfig, RunConfig
from transformer_lab.training.mesh import batch_sharding, make_mesh, placer, shardings
from transformer_lab.training.optimizer import make_optimizer, schedule
from transformer_lab.training.startup import keep_memory
from transformer_lab.training.state import init_state, make_train_step

RATE = 1e-3
OPTIMIZER = OptimizerConfig(learning_rate=RATE, schedule="constant", warmup_steps=1)


class SyntheticTranslation:
    """The translation task's loss on one synthetic batch, given again and again."""

    def __init__(self, size: Size, **changes):
        self.model_config = model_config(size, **changes)
        self.model = build(self.model_config)
        self.host = make_batch(size)
        self.before_next = lambda: None

    def init(self, key):
        ids = jnp.zeros((1, 4), jnp.int32)
        return self.model.init(key, ids, ids == 0, ids)["params"]

    def loss(self, params, batch, dropout_key):
        target = batch["target"]
        start = jnp.full_like(target[:, :1], BOS)
        shifted = jnp.concatenate([start, target[:, :-1]], axis=1)
        inputs = batch["source"], batch["source_mask"], shifted
        scores = self.model.apply({"params": params}, *inputs, dropout_key, labels=target)
        metrics = token_metrics(scores, target, batch["target_mask"], SMOOTHING)
        return {"loss": metrics["loss"]}

    def metrics(self, params, batch):
        return self.loss(params, batch, None)

    def train_batches(self):
        return self

    def __next__(self):
        self.before_next()
        return self.host

    def get_state(self):
        return {}

    def close(self):
        pass

    def eval_batches(self, split):
        return iter(())

    def score(self, params, split, place, final):
        return Scores({}, [], {})

    def fingerprint(self):
        return ""

    def sizes(self, batch):
        masks = batch["source_mask"], batch["target_mask"]
        return {"examples": len(masks[0]), "tokens": int(sum(m.sum() for m in masks))}

    def assets(self):
        return {}


class NoCheckpoints:
    """Saves nothing: what a save costs is another question."""

    def save(self, *_):
        pass

    def wait(self):
        pass

    def refuse_failure(self):
        pass

    def best(self):
        return None


class Repeated:
    """A compiled step with its state; a turn is so many steps, then waiting for the last."""

    def __init__(self, step, state, batch, steps: int):
        self.step, self.state, self.batch, self.steps = step, state, batch, steps

    def __call__(self):
        for _ in range(self.steps):
            self.state, out = self.step(self.state, self.batch)
        jax.block_until_ready((self.state, out))


def our_step(task: SyntheticTranslation | train_gpt.SyntheticText, steps: int) -> Repeated:
    """The trainer's step on one device, compiled as the trainer compiles it."""
    mesh = make_mesh(MeshConfig(data=1), 1)
    rate = schedule(OPTIMIZER, 1)
    optimizer = make_optimizer(OPTIMIZER, rate)
    init = lambda: init_state(task.init, optimizer, 0)  # noqa: E731
    placed = shardings(jax.eval_shape(init), mesh)
    step = jax.jit(
        make_train_step(task.loss, optimizer, rate, 0, 1, mesh),
        donate_argnums=0,
        in_shardings=(placed, batch_sharding(mesh)),
        out_shardings=(placed, None),
    )
    state = jax.jit(init, out_shardings=placed)()
    return Repeated(step, state, placer(mesh)(task.host), steps)


def against_bare(name: str, size: Size, rounds: int, steps: int, append: str | None) -> None:
    """Prints tokens/s, the share of the matrix product's speed and the ratio to the bare script."""
    task = SyntheticTranslation(size)
    product, product_flops = matmul_turn(size.dtype)
    batch = jax.device_put(task.host)
    turns = {
        "ours": our_step(task, steps),
        "bare": Repeated(*bare.make_step(size, batch, RATE), batch, steps),
        "product": product,
    }
    seconds = interleave(turns, rounds)
    ours, theirs = (statistics.median(seconds[key]) / steps for key in ("ours", "bare"))
    speed = product_flops / statistics.median(seconds["product"])
    share = paired(seconds["product"], seconds["ours"]) * size.step_flops() * steps / product_flops
    report(
        f"train_step {name}",
        f"{size.tokens / ours:,.0f} tokens/s, {1e3 * ours:.1f} ms a step, bare script "
        f"{1e3 * theirs:.1f} ms: {paired(seconds['bare'], seconds['ours']):.2f} times its speed; "
        f"{100 * share:.0f} % of a matrix product's {speed / 1e9:,.0f} GFLOP/s",
        append,
    )


class Alternating:
    """Called before each of the loop's steps: between blocks of them it runs and times bare steps.

    A block of either kind ends when its last step is computed.
    """

    def __init__(self, alone: Repeated, block: int):
        self.alone, self.block = alone, block
        self.calls, self.newest, self.since = 0, None, 0.0
        self.loop_seconds: list[float] = []
        self.alone_seconds: list[float] = []

    def watch(self, train_step):
        """The same step, its newest result kept so that a block's end can be waited for."""

        def step(state, batch):
            out = train_step(state, batch)
            self.newest = out[1]
            return out

        return step

    def __call__(self):
        if self.calls % self.block == 0:
            jax.block_until_ready(self.newest)
            now = time.perf_counter()
            if self.calls > self.block:  # the first block holds the compilation
                self.loop_seconds.append(now - self.since)
                self.alone()
                self.alone_seconds.append(time.perf_counter() - now)
            elif self.calls:
                self.alone()
            self.since = time.perf_counter()
        self.calls += 1


def loop_overhead(name: str, size: Size, blocks: int, block: int, append: str | None) -> None:
    """Prints what the loop adds to its compiled step: batches to the device, metrics, logging."""
    try:
        from transformer_lab.training.loop import train
        from transformer_lab.training.trainer import Trainer
    except ImportError as error:
        print(f"train_loop {name}: skipped, {error}", flush=True)
        return
    steps = block * (blocks + 1) + 1
    task = SyntheticTranslation(size)
    run = RunConfig(
        steps=steps,
        log_every=block,
        eval_every=steps,
        save_every=steps,
        mesh=MeshConfig(data=1),
        optimizer=OPTIMIZER,
    )
    trainer = Trainer(run, task, make_mesh(run.mesh, 1))
    alone = Repeated(trainer.train_step, trainer.init(), trainer.place(task.host), block)
    task.before_next = alternating = Alternating(alone, block)
    trainer.train_step = alternating.watch(trainer.train_step)
    with tempfile.TemporaryDirectory() as workdir, contextlib.redirect_stderr(io.StringIO()):
        train(trainer, trainer.init(), Path(workdir), NoCheckpoints(), {}, None)
    ours, alone_seconds = alternating.loop_seconds, alternating.alone_seconds
    ratio = paired(ours, alone_seconds)
    alone_ms = 1e3 * statistics.median(alone_seconds) / block
    fastest = [1e3 * min(values) / block for values in (ours, alone_seconds)]
    report(
        f"train_loop {name}",
        f"{100 * (ratio - 1):+.1f} % ({(ratio - 1) * alone_ms:+.2f} ms) on a step of "
        f"{alone_ms:.1f} ms; fastest blocks {fastest[0]:.1f} against {fastest[1]:.1f} ms",
        append,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=[*SIZES, "gpt_12m"], default="default")
    parser.add_argument("--config", help="a config file of a decoder, in the place of a size")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each step")
    parser.add_argument("--steps", type=int, default=1, help="steps a turn")
    parser.add_argument("--blocks", type=int, default=4, help="blocks of loop steps; 0: none")
    parser.add_argument("--block", type=int, default=20, help="steps a block")
    parser.add_argument("--append", help="a file that gets the results as table rows")
    args = parser.parse_args()
    if args.config or args.size == "gpt_12m":
        sizes = train_gpt.read_config(args.config) if args.config else (train_gpt.GPT_12M, 16, 128)
        name = args.config or args.size
        train_gpt.compare(name, our_step, *sizes, args.rounds, args.steps, args.append)
        return
    size = SIZES[args.size]
    if args.rounds:
        against_bare(args.size, size, args.rounds, args.steps, args.append)
    if args.blocks:
        loop_overhead(args.size, size, args.blocks, args.block, args.append)


if __name__ == "__main__":
    keep_memory()
    main()
