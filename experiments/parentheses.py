"""Which recurrent nets learn to match parentheses, and beyond the lengths that they trained on?

python -m transformer_lab.sweep --experiment=experiments/parentheses.py --workdir=runs/parentheses

Texts of +1 and -1 of 16 to 32 symbols; a negative has its positive's symbols, shuffled or with two
swapped. Gers 2001 asks the like of a^n b^n. The plot: accuracy by length, and by training step.
`--scale=paper` also asks for five kinds of parentheses, and takes three seeds.
"""

from matplotlib.figure import Figure

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import grid, seeds, vary

FILE = "configs/parentheses.py"
NETS = ("elman", "gated", "gru", "lstm", "transformer")
LENGTHS = (16, 24, 32, 48, 64, 96)


def get_experiment(scale: str) -> Experiment:
    """At scale cpu one seed of each net."""
    nets = vary("config", {net: f"{FILE}:{net}" for net in NETS})
    if scale == "paper":
        nets = seeds(grid(nets, vary("data.symbols", ["signs", "ten"])), 3)
    return Experiment(
        config=FILE,
        variations=nets,
        metric="accuracy",
        higher_is_better=True,
        columns=(*(f"accuracy_{n}" for n in LENGTHS), "majority_baseline", "length_baseline"),
        changes={"data.other_lengths": LENGTHS, "tensorboard": False},
        plot=plot,
    )


def plot(table) -> Figure:
    """Accuracy of each net by the length of the texts, and by the training step."""
    figure = Figure((9, 3.6), layout="constrained")
    by_length, by_step = figure.subplots(1, 2, sharey=True)
    for i, row in enumerate(table.rows):
        means = [row.mean(f"test/accuracy_{n}") for n in LENGTHS]
        by_length.plot(LENGTHS, means, f"C{i}o-", label=row.name)
        for run in row.runs:
            by_step.plot(*run.curve("validation/accuracy"), f"C{i}", lw=1)
    by_length.axvspan(16, 32, color="0.9", label="trained on")
    by_length.set(xlabel="symbols of a text", ylabel="accuracy")
    by_step.set(xlabel="training step")
    by_length.legend(fontsize="small")
    return figure
