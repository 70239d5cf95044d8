"""How do time and memory of a layer grow with the length that it reads?

python -m transformer_lab sweep --experiment=experiments/complexity_table1.py --workdir=runs/table1

Vaswani 2017, table 1, measured and not trained: one pass forward and backward over a single
sequence, the best of three, and the bytes that the compiled program takes beside its arguments.
`*_exponent` is the slope over lengths of 512 and more in logarithms: the table has 2 for
self-attention, 1 for the others. A recurrence's steps wait for each other, which time shows on
devices that do many things at once.

Scale cpu: width 128, lengths to 2,048, seconds on 2 cores; scale paper: width 512, to
16,384, for a GPU of 80 GB.

2026-11-30, one core (Intel Xeon), a minute, exponents of time from 512 to 2,048: 2.02
self-attention, 0.85 a window of 64, 1.02 squares of 64, 0.84 recurrence, 0.88 convolution, 1.00
linear attention, 1.06 with gates, 0.99 Mamba-2, 1.37 Mamba, 0.98 RWKV; of memory 2.13 and for all
others 0.84 to 1.13. Mamba's states take 137 MB at 2,048, Mamba-2's 6.9: chunks keep the state
between them alone.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from transformer_lab.ops import recurrence, scan
from transformer_lab.ops.attention import attend, local_attend
from transformer_lab.ops.visibility import Visible
from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import vary

WINDOW, KERNEL, HEAD, ASYMPTOTIC = 64, 3, 64, 512
SCANS = {  # of ops.scan: entries of a head's value and key, decays of a head, and the way
    "linear_attention": (HEAD, HEAD, 0, "chunks"),  # Katharopoulos 2020
    "gated_linear": (HEAD, HEAD, HEAD, "chunks"),  # Yang 2023
    "mamba2": (HEAD, HEAD, 1, "chunks"),  # Dao 2024
    "mamba": (1, 16, 16, "steps"),  # Gu 2023
    "rwkv": (1, 1, 1, "associative"),  # Peng 2023
}
KINDS = ("self_attention", "window", "squares", "recurrence", "convolution", *SCANS)


def get_experiment(scale: str) -> Experiment:
    """A row a kind of layer."""
    width, longest = (128, 2048) if scale == "cpu" else (512, 16_384)
    lengths = tuple(2**i for i in range(7, longest.bit_length()))
    shown = [n for n in lengths if n in (512, 2048, longest)]
    return Experiment(
        config="",
        variations=vary("kind", dict(zip(KINDS, KINDS, strict=True))),
        metric="time_exponent",
        columns=("memory_exponent", *(f"{x}_{n}" for x in ("seconds", "bytes") for n in shown)),
        changes={"width": width, "lengths": lengths},
        paper=papers.VASWANI_TABLE1,
        measure=measure,
        plot=plot,
    )


def layer(kind: str, x, weights):
    """[T, D] of [T, D]: what a layer does to mix places; projections are left out."""
    t, d = x.shape
    if kind == "recurrence":
        cell = recurrence.Cell("elman")
        state = recurrence.zero_state(cell, 1, d)
        return recurrence.scan(cell, {"kernel": weights[0]}, (x @ weights[1])[:, None], state)[0]
    if kind == "convolution":
        return jax.lax.conv_general_dilated(
            x[None], weights[:KERNEL], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )
    if kind in SCANS:
        size, entries, decays, way = SCANS[kind]
        value = x.reshape(1, t, d // size, size)
        key = jnp.broadcast_to(x[None, :, None, :entries], (1, t, d // size, entries))
        decay = -jax.nn.softplus(key[..., :decays]) if decays else jnp.zeros((1, t, 1, 1))
        return scan.recurrence(key, key, value, decay, way=way, chunk=16 if decays > 1 else 64)[0]
    heads = x.reshape(1, t, d // HEAD, HEAD).swapaxes(1, 2)
    if kind == "squares":  # as Swin's windows: in each, all attend to all
        parts = heads.reshape(-1, t // WINDOW, WINDOW, HEAD)
        return attend(parts, parts, parts)[0]
    if kind == "window":
        return local_attend(heads, heads, heads, Visible(window=WINDOW))
    return attend(heads, heads, heads)[0]


def cost(kind: str, x, weights):
    """A number of which to take the gradient."""
    return jnp.square(layer(kind, x, weights / x.shape[1])).mean()


def measure(settings: dict) -> dict[str, float]:
    """Seconds and bytes at each length, and how they grow."""
    found, weights = {}, jax.random.normal(jax.random.key(0), (KERNEL, *(settings["width"],) * 2))
    for n in settings["lengths"]:
        x = jax.random.normal(jax.random.key(n), (n, settings["width"]))
        program = jax.jit(jax.grad(cost, argnums=(1, 2)), static_argnums=0)
        program = program.lower(settings["kind"], x, weights).compile()
        times = []
        for _ in range(4):  # the first warms up
            start = time.perf_counter()
            jax.block_until_ready(program(x, weights))
            times.append(time.perf_counter() - start)
        found[f"seconds_{n}"] = min(times[1:])
        found[f"bytes_{n}"] = program.memory_analysis().temp_size_in_bytes
    long = [n for n in settings["lengths"] if n >= ASYMPTOTIC]
    for name, key in (("time", "seconds"), ("memory", "bytes")):
        values = [found[f"{key}_{n}"] for n in long]
        found[f"{name}_exponent"] = float(np.polyfit(np.log(long), np.log(values), 1)[0])
    return found


def plot(table) -> Figure:
    """Seconds and bytes by length."""
    figure = Figure((9, 3.8), layout="constrained")
    for axes, what in zip(figure.subplots(1, 2), ("seconds", "bytes"), strict=True):
        for row in table.rows:
            keys = [key for key in row.finished[0].values if key.startswith(f"test/{what}_")]
            lengths = [int(key.rpartition("_")[2]) for key in keys]
            axes.loglog(lengths, [row.mean(key) for key in keys], "o-", label=row.name)
        axes.set(xlabel="length, tokens", ylabel=what)
    axes.legend()
    return figure
