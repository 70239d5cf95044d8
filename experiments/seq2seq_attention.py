"""What does attention give a recurrent translator, and what a transformer, at equal cost?

python -m transformer_lab.sweep --experiment=experiments/seq2seq_attention.py --workdir=runs/seq2seq

Software catalogues, English to French; parameters within 2 %, steps so many that each takes about
the time of 1,050 of the transformer on 2 cores; three seeds. Bahdanau 2015, figure 2: without
attention long sources are lost, here the columns of BLEU by the words of the source.
"""

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, seeds

FILE = "configs/seq2seq_en_fr.py"
# A step's time over the transformer's, measured side by side at its batches of 100 x (19 + 22).
COST = {"none": 0.71, "additive": 0.91, "general": 0.79, "dot": 0.76, "transformer": 1.0}
STEPS = 1050


def get_experiment(scale: str) -> Experiment:
    """At scale paper ten times the steps."""
    many = 10 * STEPS if scale == "paper" else STEPS
    kinds = [
        Variation(kind, {"config": f"{FILE}:{kind}", "steps": round(many / cost)})
        for kind, cost in COST.items()
    ]
    return Experiment(
        config=FILE,
        variations=seeds(kinds, 3),
        metric="bleu",
        higher_is_better=True,
        columns=(*(f"bleu_words_{n}" for n in ("to_4", "to_8", "to_16", "over_16")), "chrf"),
        changes={"tensorboard": False, "log_every": 100},
        paper={"none": 17.82, "additive": 26.75},
        source="Bahdanau 2015, table 1: RNNencdec-50 and RNNsearch-50, all of newstest2014 en-fr",
    )
