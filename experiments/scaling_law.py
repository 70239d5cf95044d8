"""How does the loss fall with parameters and tokens, and what is the best size for a budget?

python -m transformer_lab sweep --experiment=experiments/scaling_law.py --workdir=runs/scaling

GPTs of 0.1 to 10 million parameters beside their embeddings, on less than an epoch of the Brown
corpus, at a constant rate, so that every point of a curve is a run of its own (Kaplan 2020). The
plot fits L = E + A / N^a + B / D^b (Hoffmann 2022, section 3.3, which finds a = 0.34, b = 0.28) to
the points beyond twice the warm-up and draws the size that is best for each amount of computing,
6 N D.

Scale cpu: six runs of one seed, 50 minutes of training on one core.

2026-11-28: validation loss 4.62, 4.50, 4.43, 4.37, 4.34, 4.34 nats after 1.02 million tokens;
E = 2.15, a = 0.49, b = 0.19, with errors of 0.018 (from 200 steps on E = 3.16, a = 0.45, b = 0.34:
so few tokens do not tell E from b). The loss falls by size and tokens as in both papers. Sizes are
of the blocks alone, without embeddings, as in Kaplan 2020; the smallest has more outside of them.
"""

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import least_squares

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation

SHAPES = ((2, 64), (3, 96), (4, 128), (4, 192), (6, 256), (6, 384))  # layers, width
BATCH = 16 * 128  # tokens
FIRST = 100  # step of the fit: the warm-up has 50


def size(layers: int, width: int) -> int:
    """Parameters of the blocks: four projections, and a feed-forward of four times the width."""
    return 12 * layers * width**2


def get_experiment(scale: str) -> Experiment:
    """500 steps; at scale paper 5,000 of models twice as wide."""
    factor = 1 if scale == "cpu" else 2
    return Experiment(
        config="configs/gpt_positions.py:rope",
        variations=[
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
        ],
        metric="loss",
        columns=("bits_per_byte",),
        changes={
            "steps": 500 if scale == "cpu" else 5000,
            "eval_every": 50,
            "optimizer.schedule": "constant",
            "optimizer.learning_rate": 5e-3,
            "task.other_lengths": (),
            "tensorboard": False,
        },
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


def plot(table) -> Figure:
    """Validation loss by computing, the fit, and the best size by computing."""
    figure = Figure((9, 3.8), layout="constrained")
    curves, best = figure.subplots(1, 2)
    points = []
    for row in table.rows:
        n = float(row.name.removesuffix("M")) * 1e6
        for run in row.finished:
            steps, losses = run.curve("validation/loss")
            tokens = np.array(steps, float) * BATCH
            curves.loglog(6 * n * tokens, losses, "o-", ms=3, label=row.name)
            rows = zip(steps, tokens, losses, strict=True)
            points += [(n, count, loss) for step, count, loss in rows if step >= FIRST]
    if len(points) > 5:
        n, d, loss = np.array(points).T
        e, log_a, log_b, a, b = fit(n, d, loss)
        computing = np.geomspace((6 * n * d).min(), (6 * n * d).max(), 20)
        ratio = a * np.exp(log_a) / (b * np.exp(log_b))
        size_of = ratio ** (1 / (a + b)) * (computing / 6) ** (b / (a + b))
        best.loglog(computing, size_of, "k-")
        best.set_title(f"L = {e:.2f} + A/N^{a:.2f} + B/D^{b:.2f}", fontsize="small")
    curves.set(xlabel="floating-point operations, 6 N D", ylabel="validation loss, nats")
    best.set(xlabel="floating-point operations", ylabel="best number of parameters")
    curves.legend(fontsize="x-small")
    return figure
