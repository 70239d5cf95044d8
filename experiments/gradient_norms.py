"""How large are the gradients of each layer before the first step, by where the norm stands?

python -m transformer_lab sweep --experiment=experiments/gradient_norms.py --workdir=runs/gradients

Xiong 2020, figure 3 and theorem 1, exactly as far as initial values go: of a decoder with Xavier's
initial values the Frobenius norm of the gradient at each layer's last feed-forward kernel. With the
norm last it is the same for the last layer of any depth; with the norm first it falls as the root
of the number of layers. `last`, `first` and their quotient `last_over_first` are of the layers;
`norm_I` are those of a quarter, half and three quarters of the depth. No step is taken.

Scale cpu: width 128, 64 sequences of 32 random tokens, three seeds of depths 3 to 24; scale paper:
width 512 and 6 to 96 layers.

2026-11-29, about 9 minutes of one core (AMD EPYC), from 3 to 24 layers: at the last layer 0.394 to
0.417 with the norm last, 0.178 to 0.076 with the norm first, and 0.074 to 0.026 at all layers alike
with DeepNorm, by the root of the depth.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from transformer_lab.models import decoder
from transformer_lab.ops.losses import token_scores
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import grid, seeds, vary

PLACES, VOCABULARY = ("post", "pre", "deep"), 512
SIZES = {"cpu": (128, (3, 6, 12, 24)), "paper": (512, (6, 12, 24, 48, 96))}


def get_experiment(scale: str) -> Experiment:
    """Rows PLACE,layers=DEPTH."""
    width, depths = SIZES[scale]
    rows = grid(vary("norm_place", dict(zip(PLACES, PLACES, strict=True))), vary("layers", depths))
    return Experiment(
        config="",
        variations=seeds(rows, 3),
        metric="last",
        higher_is_better=None,
        columns=("first", "last_over_first", "norm_25", "norm_50", "norm_75"),
        changes={"width": width},
        base={f"{place},layers={n}": f"{place},layers={depths[0]}"
              for place in PLACES for n in depths[1:]},
        measure=measure,
        plot=plot,
    )  # fmt: skip


def measure(settings: dict) -> dict[str, float]:
    """The norms of one draw of initial values and tokens."""
    width, layers = settings["width"], settings["layers"]
    config = decoder.DecoderConfig(
        layers=layers, width=width, heads=width // 32, head_dim=32, feed_forward_width=4 * width,
        vocab_size=VOCABULARY, max_length=64, norm_place=settings["norm_place"], tie_head=False,
        kernel_init="xavier_uniform", depth_scaled_init=False, embedding_scale=True,
        init_std=width**-0.5, activation="relu", positions="sinusoidal", dropout=0.0,
    )  # fmt: skip
    keys = jax.random.split(jax.random.key(settings["seed"]))
    tokens = jax.random.randint(keys[0], (64, 33), 0, VOCABULARY)
    found = [float(x) for x in norms_of(config)(keys[1], tokens)]
    parts = {f"norm_{q}": found[(layers - 1) * q // 100] for q in (25, 50, 75)}
    return {"last": found[-1], "first": found[0], "last_over_first": found[-1] / found[0], **parts}


@cache
def norms_of(config: decoder.DecoderConfig) -> Callable[[Any, Any], Any]:
    """The compiled function of a key and tokens that gives the norms of all layers."""
    model = decoder.build(config)

    def norms(key, tokens):
        def loss(params):
            logits = model.apply({"params": params}, tokens[:, :-1])
            scores = token_scores(logits, tokens[:, 1:])
            return (scores.logsumexp - scores.chosen).mean()

        stack = jax.grad(loss)(model.init(key, tokens[:, :-1])["params"])["decoder"]
        layers = (stack[f"layer_{i}"] for i in range(config.layers))
        return jnp.stack([jnp.linalg.norm(x["feed_forward"]["down"]["kernel"]) for x in layers])

    return jax.jit(norms)


def plot(table) -> Figure:
    """The norm at the last layer by depth, a line for each place of the norm."""
    figure = Figure((6, 4), layout="constrained")
    axes = figure.subplots()
    for place in PLACES:
        rows = [row for row in table.rows if row.name.startswith(f"{place},")]
        depths = [int(row.name.rpartition("=")[2]) for row in rows]
        axes.loglog(depths, [row.mean("test/last") for row in rows], "o-", label=place)
    axes.set(xlabel="layers", ylabel="gradient norm of the last layer's last kernel")
    axes.set_xticks(depths, depths)
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.legend()
    return figure
