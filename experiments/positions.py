"""What tells a decoder where a token stands, and which kinds read on beyond their training length?

python -m transformer_lab sweep --experiment=experiments/positions.py --workdir=runs/positions

The small GPT on the Brown corpus, trained at 128 tokens, scored at 128, 256 and 512 (Press 2021,
figure 1, which finds that ALiBi's perplexity holds, and sinusoids' and RoPE's explode; Su 2021).
Token vectors are multiplied by the root of the width where fixed vectors of size one are added, as
in Vaswani 2017, section 3.4; `sinusoidal_unscaled` shows what happens without. `index` and
`index_scaled` are two classic mistakes; `+every` adds the vectors before each layer.

2026-11-30, 2 cores (AMD EPYC) with other work beside them, an hour of one core for the 23 runs,
bits per byte at 128 and at 512 after 1,000 steps, three seeds: RoPE 1.903 and 1.972, ALiBi 1.939
and 1.938, sinusoids 2.024 and 2.213 (not scaled 2.057 and 3.438), no positions 2.117 and 2.137.
ALiBi holds beyond its length, RoPE and sinusoids do not, as published.
"""

from matplotlib.figure import Figure

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, seeds, vary

FILE = "configs/gpt_positions.py"
KINDS = (
    "none", "learned", "sinusoidal", "binary", "index", "index_scaled", "rope", "alibi", "t5",
    "transformer_xl", "sinusoidal+every", "rope+interleaved",
)  # fmt: skip
DECIDING = ("none", "sinusoidal", "rope", "alibi")  # of three seeds: sentences rest on them
LENGTHS = (128, 256, 512)
SHORT = {"steps": 1000, "eval_every": 1000, "optimizer.warmup_steps": 100}


def get_experiment(scale: str) -> Experiment:
    """At scale cpu 1,000 steps, three seeds of what decides; else 3 seeds of 50,000 on C4."""
    kinds = vary("config", {kind: f"{FILE}:{kind}" for kind in KINDS})
    changes = {"config": f"{FILE}:sinusoidal", "model.embedding_scale": False}
    unscaled = Variation("sinusoidal_unscaled", changes)
    decide = (*DECIDING, unscaled.row) if scale == "cpu" else None
    return Experiment(
        config=FILE,
        variations=seeds([*kinds, unscaled], 3, decide),
        metric="bits_per_byte",
        columns=tuple(f"bits_per_byte_{n}" for n in LENGTHS[1:]),
        changes={"tensorboard": False}
        | (SHORT if scale == "cpu" else papers.C4 | {"steps": 50_000}),
        also=("bits_per_byte_512",),
        base=dict.fromkeys(KINDS, "none") | {"alibi": "rope", "sinusoidal_unscaled": "sinusoidal"},
        plot=plot,
    )


def plot(table) -> Figure:
    """Bits per byte of each kind by the length that is read; what is not scaled lies far above."""
    figure = Figure((7, 4), layout="constrained")
    axes = figure.subplots()
    shown = [row for row in table.rows if row.name != "sinusoidal_unscaled"]
    for i, row in enumerate(shown):
        names = ["test/bits_per_byte", *(f"test/bits_per_byte_{n}" for n in LENGTHS[1:])]
        values = [row.mean(name) for name in names]
        axes.plot(LENGTHS, values, f"C{i % 10}{'o-' if i < 10 else 's--'}", label=row.name)
    axes.set(xlabel="tokens that are read at once", ylabel="bits per byte", xticks=LENGTHS)
    figure.legend(loc="outside right upper", fontsize="small")
    return figure
