"""An LSTM's step, forward and backward, beside torch.nn.LSTM where PyTorch is installed.

python -m benchmarks.recurrence [--append=docs/benchmarks.md]

Gradients of all weights and of the input; the sizes are those of --layers, --width, --rows and
--length. Both take turns in one process.
"""

import statistics

import jax
import jax.numpy as jnp
from absl import app, flags

from benchmarks.common import interleave, paired, report
from transformer_lab.layers.recurrent import RecurrentConfig, RecurrentStack
from transformer_lab.training.startup import keep_memory

flags.DEFINE_integer("layers", 1, "Of the stack.")
flags.DEFINE_integer("width", 256, "Units, and features of the input.")
flags.DEFINE_integer("rows", 32, "Of a batch.")
flags.DEFINE_integer("length", 64, "Time steps.")
flags.DEFINE_integer("rounds", 10, "Of turns.")
flags.DEFINE_integer("steps", 5, "Of a turn.")
flags.DEFINE_string("append", None, "A Markdown file that gets the result as a row.")


def our_turn(layers: int, width: int, rows: int, length: int, steps: int):
    """A turn of so many steps, and how often the step was traced so far."""
    net, traces = RecurrentStack(RecurrentConfig(layers=layers, width=width), width), []
    x = jax.random.normal(jax.random.key(0), (rows, length, width))
    params = net.init(jax.random.key(1), x)

    @jax.jit
    def step(params, x):
        traces.append(1)
        return jax.grad(lambda p, x: jnp.square(net.apply(p, x)[0]).sum(), argnums=(0, 1))(
            params, x
        )

    def turn():
        for _ in range(steps):
            jax.block_until_ready(step(params, x))

    return turn, traces


def torch_turn(layers: int, width: int, rows: int, length: int, steps: int):
    """The same in PyTorch; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    device = "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"
    net = torch.nn.LSTM(width, width, layers, batch_first=True, device=device)
    x = torch.randn(rows, length, width, device=device, requires_grad=True)

    def turn():
        for _ in range(steps):
            net.zero_grad(set_to_none=True)
            x.grad = None
            net(x)[0].square().sum().backward()
        if device == "cuda":
            torch.cuda.synchronize()

    return turn


def main(_) -> None:
    args = flags.FLAGS
    sizes = args.layers, args.width, args.rows, args.length, args.steps
    ours, traces = our_turn(*sizes)
    turns = {"ours": ours}
    if theirs := torch_turn(*sizes):
        turns["torch"] = theirs
    seconds = interleave(turns, args.rounds)
    result = f"{1e3 * statistics.median(seconds['ours']) / args.steps:.2f} ms a step"
    result += f", compiled {len(traces)} time(s)"
    if theirs:
        speed = paired(seconds["torch"], seconds["ours"])
        median = 1e3 * statistics.median(seconds["torch"]) / args.steps
        result += f"; PyTorch {median:.2f} ms: {speed:.2f} times its speed"
    name = f"LSTM {args.layers} x {args.width}, {args.rows} x {args.length} steps"
    report(name, result, args.append)


if __name__ == "__main__":
    keep_memory()
    app.run(main)
