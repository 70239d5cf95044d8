"""Three ways to translate by a transformer: two stacks, one with a prefix, one from left to right?

python -m transformer_lab.sweep --experiment=experiments/conditional.py --workdir=runs/conditional

Software catalogues, English to French; equal parameters (within 2 %), steps so many that each takes
about the time of 1,050 of the encoder-decoder on 2 cores, the loss on the target alone; two seeds.
Raffel 2020, table 2: the encoder-decoder is best, the prefix LM beats the causal one. Not yet run.
"""

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, seeds

FILE = "configs/seq2seq_en_fr.py"
COST = {"transformer": 1.0, "prefix": 1.0, "causal": 1.0}  # a step's time over the first's
STEPS = 1050


def get_experiment(scale: str) -> Experiment:
    """At scale paper ten times the steps and three seeds."""
    paper = scale == "paper"
    kinds = [
        Variation(
            kind, {"config": f"{FILE}:{kind}", "steps": round((9 * paper + 1) * STEPS / cost)}
        )
        for kind, cost in COST.items()
    ]
    return Experiment(
        config=FILE,
        variations=seeds(kinds, 3 if paper else 2),
        metric="bleu",
        higher_is_better=True,
        columns=("chrf", "loss"),
        changes={"tensorboard": False, "log_every": 100},
        paper={"transformer": 39.82, "prefix": 37.98, "causal": 35.28},
        source="Raffel 2020, table 2: WMT English to French, after pre-training",
    )
