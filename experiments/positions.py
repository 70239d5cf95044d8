"""What tells a decoder where a token stands, and which kinds read on beyond their training length?

python -m transformer_lab sweep --experiment=experiments/positions.py --workdir=runs/positions

The small GPT on the Brown corpus, trained at 128 tokens, scored at 128, 256 and 512 (Press 2021,
figure 1, which finds that ALiBi's perplexity holds, and sinusoids' and RoPE's explode; Su 2021).
`index` and `index_scaled` are two classic mistakes; `+every` adds the vectors before each layer.

2026-11-28, 17 minutes on 2 cores beside tests, bits per byte at 128 and at 512: ALiBi holds (2.039,
2.038) and sinusoids explode (2.289, 3.409), as in the paper; RoPE only rises (2.024, 2.072). Best
are Transformer-XL's (2.001, 2.007). Numbers as positions do nothing: the same on all features, the
norm takes them away, and the rows equal `none`.
"""

from matplotlib.figure import Figure

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import seeds, vary

KINDS = (
    "none", "learned", "sinusoidal", "binary", "index", "index_scaled", "rope", "alibi", "t5",
    "transformer_xl", "sinusoidal+every", "rope+interleaved",
)  # fmt: skip
LENGTHS = (128, 256, 512)


def get_experiment(scale: str) -> Experiment:
    """At scale cpu 500 steps of one seed each, as the config has them; else 3 seeds of 5,000."""
    kinds = vary("config", {kind: f"configs/gpt_positions.py:{kind}" for kind in KINDS})
    return Experiment(
        config="configs/gpt_positions.py",
        variations=kinds if scale == "cpu" else seeds(kinds, 3),
        metric="bits_per_byte",
        columns=tuple(f"bits_per_byte_{n}" for n in LENGTHS[1:]),
        changes={"tensorboard": False} | ({} if scale == "cpu" else {"steps": 5000}),
        plot=plot,
    )


def plot(table) -> Figure:
    """Bits per byte of each kind by the length that is read."""
    figure = Figure((6, 4), layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(table.rows):
        names = ["test/bits_per_byte", *(f"test/bits_per_byte_{n}" for n in LENGTHS[1:])]
        values = [row.mean(name) for name in names]
        axes.plot(LENGTHS, values, f"C{i % 10}{'o-' if i < 10 else 's--'}", label=row.name)
    axes.set(xlabel="tokens that are read at once", ylabel="bits per byte", xticks=LENGTHS)
    axes.legend(fontsize="x-small")
    return figure
