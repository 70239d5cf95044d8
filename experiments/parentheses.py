"""Which recurrent nets learn to match parentheses, and beyond the lengths that they trained on?

python -m transformer_lab sweep --experiment=experiments/parentheses.py --workdir=runs/parentheses

Texts of +1 and -1 (16 to 32 symbols) and of five kinds of parentheses (10 to 20); a negative has
its positive's symbols, shuffled or with two swapped. Gers 2001 asks the like of a^n b^n. The plot:
accuracy by length, and by training step. `--scale=paper` takes three seeds.

2026-11-28, 2 cores shared with other work, one seed: 7 min 20 s for all ten. With signs every
recurrent net has 1.000 on held-out texts of the training lengths, the transformer 0.988; at 64
symbols the LSTM has 0.975, the Elman net 0.887. With five kinds LSTM 0.994, GRU 0.996, one gate
0.993, Elman 0.805, transformer 0.809; at 48 symbols LSTM and GRU 0.895. Both baselines have 0.500.
"""

from matplotlib.figure import Figure

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import seeds, vary

FILE = "configs/parentheses.py"
NETS = ("elman", "gated", "gru", "lstm", "transformer")
TRAINED = {"signs": (16, 32), "ten": (10, 20)}
LENGTHS = (10, 16, 20, 24, 32, 48, 64, 96)  # each alphabet has some of them


def get_experiment(scale: str) -> Experiment:
    """At scale cpu one seed of each net."""
    files = {f"{net}_{s}": f"{FILE}:{net}+{s}" for s in TRAINED for net in NETS}
    return Experiment(
        config=FILE,
        variations=seeds(vary("config", files), 3 if scale == "paper" else 1),
        metric="accuracy",
        higher_is_better=True,
        columns=(*(f"accuracy_{n}" for n in LENGTHS), "majority_baseline", "length_baseline"),
        changes={"tensorboard": False},
        plot=plot,
    )


def plot(table) -> Figure:
    """Accuracy of each net by the length of the texts, and by the training step."""
    figure = Figure((9, 6), layout="constrained")
    for (by_length, by_step), symbols in zip(
        figure.subplots(2, 2, sharey=True), TRAINED, strict=True
    ):
        rows = [row for row in table.rows if row.name.endswith(f"_{symbols}")]
        for i, row in enumerate(rows):
            lengths = [n for n in LENGTHS if row.numbers(f"test/accuracy_{n}")]
            means = [row.mean(f"test/accuracy_{n}") for n in lengths]
            by_length.plot(lengths, means, f"C{i}o-", label=row.name)
            for run in row.runs:
                by_step.plot(*run.curve("validation/accuracy"), f"C{i}", lw=1)
        by_length.axvspan(*TRAINED[symbols], color="0.9", label="trained on")
        by_length.set(xlabel="symbols of a text", ylabel="accuracy")
        by_step.set(xlabel="training step")
        by_length.legend(fontsize="small")
    return figure
