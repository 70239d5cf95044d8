"""How do time, memory, waiting and the way between tokens grow with the length that a layer reads?

python -m transformer_lab sweep --experiment=experiments/complexity_table1.py --workdir=runs/table1

Vaswani 2017, table 1, measured and not trained: one pass forward and backward over a single
sequence, the best of three, and the bytes that the compiled program takes beside its arguments.
`sequential_N` is the longest chain of operations that wait for each other in the pass forward over
N tokens, and `path_N` that number times the layers which a signal needs from the first token to the
last: a layer's reach is seen by its gradients, and squares lead no further on any number of layers.
`*_exponent` is the slope over lengths of 512 and more in logarithms; of time the table has 2 for
self-attention and 1 for the others.

Scale cpu: width 128, lengths to 2,048, seconds on 2 cores; scale paper: width 512, to
16,384, for a GPU of 80 GB.

2026-11-30, one core (Intel Xeon), 3 minutes, exponents of time from 512 to 2,048: 2.46
self-attention, 1.08 a window of 64, 1.10 squares of 64, 1.01 recurrence, 0.82 convolution, 0.99
linear attention, 0.80 with gates, 1.03 Mamba-2, 1.24 Mamba, 1.09 RWKV; of memory 2.13 and for all
others 0.84 to 1.12. Of sequential operations 0 for what attends or convolves, 0.93 to 1 for what is
scanned, 0.11 for RWKV's associative scan; of the path besides 0.94 for the window and 1.00 for the
convolution, whose kernels of three stand side by side.
"""

import math
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from matplotlib.figure import Figure

from transformer_lab.ops import recurrence, scan
from transformer_lab.ops.attention import attend, local_attend
from transformer_lab.ops.visibility import Visible
from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import vary
from transformer_lab.training.compiling import inner_jaxprs

WINDOW, KERNEL, HEAD, ASYMPTOTIC, REACH = 64, 3, 64, 512, 192
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
    what = ("seconds", "bytes", "sequential", "path")
    return Experiment(
        config="",
        variations=vary("kind", dict(zip(KINDS, KINDS, strict=True))),
        metric="time_exponent",
        columns=(
            *("memory_exponent", "sequential_exponent", "path_exponent"),
            *(f"{x}_{n}" for x in what for n in shown),
        ),
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
        out = recurrence.scan(cell, {"kernel": weights[0]}, (x @ weights[1])[:, None], state)[0]
    elif kind == "convolution":
        out = jax.lax.conv_general_dilated(
            x[None], weights[:KERNEL], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )
    elif kind in SCANS:
        size, entries, decays, way = SCANS[kind]
        value = x.reshape(1, t, d // size, size)
        key = jnp.broadcast_to(x[None, :, None, :entries], (1, t, d // size, entries))
        decay = -jax.nn.softplus(key[..., :decays]) if decays else jnp.zeros((1, t, 1, 1))
        chunk = 16 if decays > 1 else 64
        out = scan.recurrence(key, key, value, decay, way=way, chunk=chunk)[0]
    else:
        heads = x.reshape(1, t, d // HEAD, HEAD).swapaxes(1, 2)
        if kind == "squares":  # as Swin's windows: in each, all attend to all
            parts = heads.reshape(-1, t // WINDOW, WINDOW, HEAD)
            mixed = attend(parts, parts, parts)[0].reshape(heads.shape)
        elif kind == "window":
            mixed = local_attend(heads, heads, heads, Visible(window=WINDOW))
        else:
            mixed = attend(heads, heads, heads)[0]
        out = mixed.swapaxes(1, 2)
    return out.reshape(t, d)


def cost(kind: str, x, weights):
    """A number of which to take the gradient."""
    return jnp.square(layer(kind, x, weights / x.shape[1])).mean()


def waiting(jaxpr) -> int:
    """The length of the longest chain of operations that wait for each other; a loop counts as
    often as it turns."""
    chain: dict = {}  # of each variable, how many operations it waits for

    def of(variables) -> int:
        return max((chain.get(x, 0) for x in variables if not isinstance(x, Literal)), default=0)

    for line in jaxpr.eqns:
        inner = max(map(waiting, inner_jaxprs(line)), default=1) * line.params.get("length", 1)
        chain |= dict.fromkeys(line.outvars, of(line.invars) + inner)
    return of(jaxpr.outvars)


def reach(kind: str, width: int) -> float:
    """How many tokens back the last token's gradient reaches; infinite if to the first, NaN where
    layers on layers of the kind never reach it."""
    turn = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (width, width)))[0]
    weights = jnp.stack([turn, 1e-3 * turn, turn])  # a recurrence neither forgets nor saturates
    x = 1e-3 * jax.random.normal(jax.random.key(1), (REACH, width)) - 4  # nor does a decay
    of = jax.jit(jax.vmap(lambda i: jax.grad(lambda x: layer(kind, x, weights)[i].sum())(x)))
    sees = np.abs(np.asarray(of(jnp.arange(REACH)))).sum(axis=-1) > 0
    if sees[-1, 0]:
        return math.inf
    seen = sees[-1]
    for _ in range(REACH):  # through one layer more
        seen = seen @ sees
    return float(REACH - 1 - sees[-1].argmax()) if seen[0] else math.nan


def measure(settings: dict) -> dict[str, float]:
    """Seconds, bytes, sequential operations and paths at each length, and how they grow."""
    found, weights = {}, jax.random.normal(jax.random.key(0), (KERNEL, *(settings["width"],) * 2))
    back = reach(settings["kind"], settings["width"])
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
        forward = jax.make_jaxpr(layer, static_argnums=0)(settings["kind"], x, weights)
        found[f"sequential_{n}"] = waiting(forward.jaxpr)
        if not math.isnan(back):
            layers = math.ceil((n - 1) / back) if math.isfinite(back) else 1
            found[f"path_{n}"] = layers * found[f"sequential_{n}"]
    long = [n for n in settings["lengths"] if n >= ASYMPTOTIC]
    for name, key in (
        ("time", "seconds"), ("memory", "bytes"), ("sequential", "sequential"), ("path", "path")
    ):  # fmt: skip
        values = [found[f"{key}_{n}"] for n in long if f"{key}_{n}" in found]
        if values:
            slope = np.polyfit(np.log(long), np.log(values), 1)[0]
            found[f"{name}_exponent"] = round(float(slope), 6)
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
