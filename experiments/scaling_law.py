"""How does the loss fall with parameters and tokens, and what is the best size for a budget?

python -m transformer_lab sweep --experiment=experiments/scaling_law.py --workdir=runs/scaling

GPTs of 0.1 to 5 million parameters in their blocks on the Brown corpus, at a constant rate, so that
every point of a curve is a run of its own (Kaplan 2020), and of three rates for each size the one
that is best on the validation split. The plot fits L = E + A / N^a + B / D^b (Hoffmann 2022,
section 3.3, which finds a = 0.34, b = 0.28) to the points beyond twice the warm-up, with intervals
from runs drawn anew, and shows the loss by size for as much computing, 6 N D (figure 3 there).

Scale cpu: 800 steps of 2,048 tokens, which are all new: the corpus has 1.7 million.

2026-11-30, one of 2 cores (Intel Xeon), 15 runs, an hour and a quarter (the other rates of 1.77 M
were not run): test loss 4.426, 4.277, 4.194, 4.124 and 4.090 nats; E = 3.02 (90 %: 0 to 3.24),
a = 0.18 (0.02 to 0.37), b = 0.33 (0.26 to 0.39). At equal computing the smaller size is ahead.
"""

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import least_squares

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.results import Table
from transformer_lab.sweeps.variations import Variation, grid, seeds, vary

SHAPES = ((2, 64), (3, 96), (4, 128), (4, 192), (6, 256))  # layers, width
RATES = (2.5e-3, 5e-3, 1e-2)
DECIDING = ("0.10M,learning_rate=0.01", "0.33M,learning_rate=0.005")  # which won; three seeds
BATCH = 16 * 128  # tokens
FIRST = 100  # step of the fit: the warm-up has 50
DRAWS, BUDGETS = 200, 4


def size(layers: int, width: int) -> int:
    """Parameters of the blocks: four projections, and a feed-forward of four times the width."""
    return 12 * layers * width**2


def get_experiment(scale: str) -> Experiment:
    """At scale paper 5,000 steps of models twice as wide."""
    factor = 1 if scale == "cpu" else 2
    sizes = [
        Variation(
            f"{size(layers, width * factor) / 1e6:.2f}M",
            {
                "model.layers": layers,
                "model.width": width * factor,
                "model.heads": width * factor // 32,
                "model.feed_forward_width": 4 * width * factor,
            },
        )
        for layers, width in SHAPES
    ]
    rates = vary("optimizer.learning_rate", RATES)
    rows = grid(sizes, rates)
    if scale == "cpu":  # the largest by one rate, in one seed
        rows = grid(sizes[:-1], rates) + grid(sizes[-1:], rates[1:2])
    names = [row.row for row in sizes]
    return Experiment(
        config="configs/gpt_positions.py:rope",
        variations=seeds(rows, 3, DECIDING if scale == "cpu" else None),
        tuned="learning_rate",
        metric="loss",
        columns=("bits_per_byte",),
        changes={
            "steps": 800 if scale == "cpu" else 5000,
            "eval_every": 100,
            "save_every": 400,
            "keep": 1,
            "optimizer.schedule": "constant",
            "task.other_lengths": (),
            "tensorboard": False,
        },
        base=dict(zip(names[1:], names, strict=False)),  # the next smaller
        plot=plot,
    )


def fit(n: np.ndarray, d: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """E, log A, log B, a, b of the least squared error of log L."""

    def error(x):
        return np.log(
            np.exp(x[0]) + np.exp(x[1] - x[3] * np.log(n)) + np.exp(x[2] - x[4] * np.log(d))
        )

    found = least_squares(
        lambda x: error(x) - np.log(loss), (0.5, 3.0, 3.0, 0.3, 0.3), loss="huber", f_scale=1e-2
    )
    return np.concatenate([[np.exp(found.x[0])], found.x[1:]])


def points(table: Table) -> list[np.ndarray]:
    """Of each finished run its parameters, tokens and validation losses, [3, points]."""
    found = []
    for row in table.rows:
        for run in row.finished:
            steps, losses = run.curve("validation/loss")
            n = np.full(len(steps), float(row.name.removesuffix("M")) * 1e6)
            found.append(np.array([n, np.array(steps, float) * BATCH, losses]))
    return found


def intervals(runs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The fit [5] to all runs, and the bounds [2, 5] between which 90 % of the fits to as many runs
    lie that are drawn with replacement."""
    runs = [run[:, run[1] >= FIRST * BATCH] for run in runs]
    draw = np.random.default_rng(0)
    picks = [draw.integers(len(runs), size=len(runs)) for _ in range(DRAWS)]
    fits = [fit(*np.hstack([runs[i] for i in pick])) for pick in picks]
    return fit(*np.hstack(runs)), np.percentile(fits, (5, 95), axis=0)


def plot(table: Table) -> Figure:
    """Validation loss by computing, and by size for as much computing, with the fit."""
    figure = Figure((9, 3.8), layout="constrained")
    curves, equal = figure.subplots(1, 2)
    runs = points(table)
    sizes = sorted({run[0, 0] for run in runs})
    for n, tokens, losses in runs:
        curves.loglog(6 * n * tokens, losses, f"C{sizes.index(n[0])}")
    if len(sizes) > 2:
        (e, log_a, log_b, a, b), (low, high) = intervals(runs)
        title = f"L = {e:.2f} + A/N^{a:.2f} + B/D^{b:.2f}; 90 %:"
        for name, i in (("E", 0), ("a", 3), ("b", 4)):
            title += f" {name} {low[i]:.2f} to {high[i]:.2f}"
        figure.suptitle(title, fontsize="small")
        done = [6 * n[0] * tokens[[0, -1]] for n, tokens, _ in runs]
        for budget in np.geomspace(
            np.median([x[0] for x in done]), np.median([x[1] for x in done]), BUDGETS
        ):
            line = [
                (n[0], np.interp(np.log(budget), np.log(6 * n * tokens), losses))
                for n, tokens, losses in runs
                if 6 * n[0] * tokens[0] <= budget <= 6 * n[0] * tokens[-1]
            ]
            if not line:
                continue
            marks = equal.semilogx(*zip(*line, strict=True), "o", ms=3, label=f"{budget:.1e}")
            n = np.geomspace(min(line)[0], max(line)[0], 9)
            d = budget / (6 * n)
            model = e + np.exp(log_a - a * np.log(n)) + np.exp(log_b - b * np.log(d))
            equal.semilogx(n, model, color=marks[0].get_color(), lw=1)
        equal.legend(fontsize="x-small", title="operations")
    curves.set(xlabel="floating-point operations, 6 N D", ylabel="validation loss, nats")
    equal.set(xlabel="parameters of the blocks", ylabel="validation loss, nats")
    for i, n in enumerate(sizes):
        curves.plot([], [], f"C{i}", label=f"{n / 1e6:.2f} M")
    curves.legend(fontsize="x-small")
    return figure
