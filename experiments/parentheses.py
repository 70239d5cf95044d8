"""Which recurrent nets learn to match parentheses, and beyond the lengths that they trained on?

python -m transformer_lab sweep --experiment=experiments/parentheses.py --workdir=runs/parentheses

Texts of +1 and -1 (16 to 32 symbols) and of five kinds of parentheses (10 to 20); a negative has
its positive's symbols, shuffled or with two swapped. Gers 2001 asks the like of a^n b^n. The plot:
accuracy by length, and by training step.

2026-11-30, one of 2 cores (Intel Xeon), three seeds, 27 minutes. With signs all nets but the
transformer (0.978) have 1.000 on held-out texts of the training lengths; at 64 symbols 0.90 to
0.93, the Elman net as the LSTM, and the transformer 0.499. With five kinds LSTM 0.994, GRU 0.996,
one gate 0.994, Elman 0.888 (0.82, 0.86, 0.99 by seed), transformer 0.809; at 48 symbols GRU 0.883,
LSTM 0.849. Both baselines have 0.500.
"""

from matplotlib.figure import Figure

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import seeds, vary

FILE = "configs/parentheses.py"
NETS = ("elman", "gated", "gru", "lstm", "transformer")
TRAINED = {"signs": (16, 32), "ten": (10, 20)}
LENGTHS = (10, 16, 20, 24, 32, 48, 64, 96)  # each alphabet has some of them


def get_experiment(scale: str) -> Experiment:
    """Three seeds of each net; both scales are one."""
    files = {f"{net}_{s}": f"{FILE}:{net}+{s}" for s in TRAINED for net in NETS}
    return Experiment(
        config=FILE,
        variations=seeds(vary("config", files), 3),
        metric="accuracy",
        higher_is_better=True,
        also=("accuracy_48", "accuracy_64"),
        base={f"{net}_{symbols}": f"lstm_{symbols}" for symbols in TRAINED for net in NETS},
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
