"""Why are the scores of attention divided by the root of the head's width?

python -m transformer_lab.sweep --experiment=experiments/scaling_sqrt_dk.py --workdir=runs/sqrt_dk

Vaswani 2017, section 3.2.1 and footnote 4, measured and not trained: queries and keys of normal
numbers have scores of variance d_k, by which the softmax chooses one key and passes little gradient
on. Entropy in nats of 64 keys (even attention: 4.159), the largest weight, and the root mean square
of the gradient that reaches a score from outputs of unit gradient. Five seeds, seconds on a CPU;
scale paper has wider heads.

2026-11-28: scaled, all widths are alike (entropy 3.68 to 3.74, gradient 0.023). Unscaled, the
entropy falls to 1.37 at d_k = 16, 0.59 at 64 and 0.12 at 1024, where the largest weight has 0.950.
The gradient first grows, to 0.040 at d_k = 16, and is below the scaled one's only at 1024 (0.019).
"""

from functools import partial

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from transformer_lab.ops.attention import attend
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import grid, seeds, vary

KEYS, HEADS = 64, 32
SCALED = {"scaled": True, "unscaled": False}
WIDTHS = {"cpu": (1, 4, 16, 64, 256, 1024), "paper": tuple(4**i for i in range(8))}


def get_experiment(scale: str) -> Experiment:
    """Rows are widths, with the scale and without."""
    return Experiment(
        config="",
        variations=seeds(grid(vary("scaled", SCALED), vary("d_k", WIDTHS[scale])), 5),
        metric="entropy",
        columns=("score_variance", "largest_weight", "score_gradient"),
        measure=measure,
        plot=plot,
    )


def measure(settings: dict) -> dict[str, float]:
    """Of one draw of 64 queries and keys in 32 heads."""
    d = settings["d_k"]
    shape = (4, 1, HEADS, KEYS, d)
    query, key, value, pulled = jax.random.normal(jax.random.key(settings["seed"]), shape)
    scale = d**-0.5 if settings["scaled"] else 1.0
    attention = partial(attend, query, key, value, scale=scale)
    bias = jnp.zeros((1, HEADS, KEYS, KEYS))
    (_, weights), pull = jax.vjp(lambda bias: attention(bias=bias), bias)
    (gradient,) = pull((pulled / d**0.5, jnp.zeros_like(weights)))
    scores = jnp.einsum("bnth,bnsh->bnts", query, key) * scale
    entropy = -jax.scipy.special.xlogy(weights, weights).sum(axis=-1).mean()
    return {
        "entropy": float(entropy),
        "score_variance": float(scores.var()),
        "largest_weight": float(weights.max(axis=-1).mean()),
        "score_gradient": float(jnp.sqrt(jnp.square(gradient).mean())),
    }


def plot(table) -> Figure:
    """Entropy and gradient by the head's width."""
    figure = Figure((9, 3.8), layout="constrained")
    for axes, what in zip(figure.subplots(1, 2), ("entropy", "score_gradient"), strict=True):
        for name in SCALED:
            rows = [row for row in table.rows if row.name.startswith(f"{name},")]
            widths = [int(row.name.partition("=")[2]) for row in rows]
            axes.semilogx(widths, [row.mean(f"test/{what}") for row in rows], "o-", label=name)
        axes.set(xlabel="width of a head, d_k", ylabel=what.replace("_", " "))
    axes.legend()
    return figure
