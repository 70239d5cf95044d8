"""Which dropout suits a small translator that overfits (Vaswani 2017, table 3, row D)?
python -m transformer_lab sweep --experiment=experiments/dropout.py --workdir=runs/dropout
2026-11-30: BLEU 13.8, 16.3 and 14.2 at 0, 0.1 and 0.2, three seeds; 0.3 and 0.4 not run.
"""

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.papers import VASWANI_TABLE3
from transformer_lab.sweeps.variations import seeds, vary


def get_experiment(scale: str) -> Experiment:
    """The translator of few pairs in minutes, or the base model."""
    labels = {"dropout=0.1": "base"} | {f"dropout={x}": f"D, dropout {x}" for x in (0.0, 0.2)}
    return Experiment(
        config="configs/" + ("translate_en_fr.py:few" if scale == "cpu" else "transformer_base.py"),
        variations=seeds(vary("model.dropout", [0.0, 0.1, 0.2, 0.3, 0.4]), 3),
        metric="bleu", higher_is_better=True, columns=("perplexity",), also=("perplexity",),
        compares={"BLEU, newstest2013": "bleu", "perplexity, newstest2013": "perplexity"},
        paper=VASWANI_TABLE3, paper_rows=labels, base="dropout=0.1",
    )  # fmt: skip
