"""Which dropout suits a small translator (Vaswani 2017, table 3, row D)? Five values, three seeds.
python -m transformer_lab sweep --experiment=experiments/dropout.py --workdir=runs/dropout
2026-11-28, the toy, unlike the paper: after 200 steps BLEU is 45, 26, 17, 13 and 7.
"""

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.papers import VASWANI_TABLE3
from transformer_lab.sweeps.variations import seeds, vary


def get_experiment(scale: str) -> Experiment:
    """The toy translator in minutes, or the base model."""
    labels = {"dropout=0.1": "base"} | {f"dropout={x}": f"D, dropout {x}" for x in (0.0, 0.2)}
    return Experiment(
        config="configs/smoke.py" if scale == "cpu" else "configs/transformer_base.py",
        variations=seeds(vary("model.dropout", [0.0, 0.1, 0.2, 0.3, 0.4]), 3),
        metric="bleu", higher_is_better=True, columns=("loss",),
        paper=VASWANI_TABLE3, paper_rows=labels, base="dropout=0.1",
    )  # fmt: skip
