"""Why are the scores of attention divided by the root of the head's width?

python -m transformer_lab sweep --experiment=experiments/scaling_sqrt_dk.py --workdir=runs/sqrt_dk

Vaswani 2017, section 3.2.1 and footnote 4, measured and not trained: queries and keys of normal
numbers have scores of variance d_k, by which the softmax chooses one key and passes little gradient
on. Entropy in nats of 64 keys (even attention: 4.159), the largest weight, and the root mean square
of the gradient that reaches a score from outputs of unit gradient; and the loss of keys that learn
to look themselves up. Five seeds, 2 minutes of a core; scale paper has wider heads.

2026-11-30, the same digits as on 2026-11-28 on another machine: scaled, all widths are alike
(entropy 3.68 to 3.74, gradient 0.023). Unscaled, the entropy falls to 1.37 at d_k = 16, 0.59 at 64
and 0.12 at 1024, where the largest weight has 0.950. The gradient first grows, to 0.040 at d_k =
16, and is below the scaled one's only at 1024 (0.019). After 100 steps the loss is 0.39 scaled and
0.08 unscaled at d_k = 16, but 0.003 and 0.012 at 256, 0.007 and 0.029 at 1024: as the paper says
where heads are wide, the other way where narrow.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from matplotlib.figure import Figure

from transformer_lab.ops.attention import attend
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import grid, seeds, vary

KEYS, HEADS = 64, 32
STEPS, RATE = 100, 1e-2
SCALED = {"scaled": True, "unscaled": False}
WIDTHS = {"cpu": (1, 4, 16, 64, 256, 1024), "paper": tuple(4**i for i in range(8))}


def get_experiment(scale: str) -> Experiment:
    """Rows are widths, with the scale and without."""
    return Experiment(
        config="",
        variations=seeds(grid(vary("scaled", SCALED), vary("d_k", WIDTHS[scale])), 5),
        metric="loss",
        columns=("entropy", "score_variance", "largest_weight", "score_gradient", "first_loss"),
        base={f"unscaled,d_k={d}": f"scaled,d_k={d}" for d in WIDTHS[scale]},
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
    losses = learn_to_find(settings["seed"], d, scale)
    entropy = -jax.scipy.special.xlogy(weights, weights).sum(axis=-1).mean()
    return {
        "entropy": float(entropy),
        "score_variance": float(scores.var()),
        "largest_weight": float(weights.max(axis=-1).mean()),
        "score_gradient": float(jnp.sqrt(jnp.square(gradient).mean())),
        "first_loss": float(losses[0]),
        "loss": float(losses[-10:].mean()),
    }


@partial(jax.jit, static_argnums=(1, 2))
def learn_to_find(seed: int, width: int, scale: float) -> jax.Array:
    """Losses [STEPS] of Adam on a random projection of queries, until keys find themselves.

    The loss is the mean square of what attention gives less the value of the query's own key: 1 is
    even attention, 2 a single wrong key.
    """
    first, *draws = jax.random.split(jax.random.key(seed), 1 + STEPS)
    optimizer = optax.adam(RATE)

    def loss(projection, draw):
        key, value = jax.random.normal(draw, (2, 1, 4, KEYS, width))
        found, _ = attend(key @ projection, key, value, scale=scale)
        return jnp.square(found - value).mean()

    def step(state, draw):
        projection, moments = state
        now, gradient = jax.value_and_grad(loss)(projection, draw)
        update, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(projection, update), moments), now

    projection = jax.random.normal(first, (width, width)) * width**-0.5
    return jax.lax.scan(step, (projection, optimizer.init(projection)), jnp.stack(draws))[1]


def plot(table) -> Figure:
    """Entropy, gradient and loss by the head's width."""
    figure = Figure((13, 3.8), layout="constrained")
    for axes, what in zip(
        figure.subplots(1, 3), ("entropy", "score_gradient", "loss"), strict=True
    ):
        for name in SCALED:
            rows = [row for row in table.rows if row.name.startswith(f"{name},")]
            widths = [int(row.name.partition("=")[2]) for row in rows]
            axes.semilogx(widths, [row.mean(f"test/{what}") for row in rows], "o-", label=name)
        axes.set(xlabel="width of a head, d_k", ylabel=what.replace("_", " "))
    axes.legend()
    return figure
