"""What does attention give a recurrent translator, and what do transformers, at equal cost?

python -m transformer_lab sweep --experiment=experiments/attention_kinds.py --workdir=runs/kinds

Software catalogues, English to French; parameters within 2 %, steps so many that each row takes
about the time of STEPS of the transformer on one core; three seeds. Bahdanau 2015, figure 2:
without attention long sources are lost, here the columns of BLEU by the words of the source.
`prefix` and `causal` are one stack that reads source and target as one row, with the loss on the
target alone (Raffel 2020, table 2: the encoder-decoder first, then the prefix, then causal).

2026-11-28, about 4 minutes of one core a run: BLEU 8.5 without attention, 17.6 additive, 17.8
general, 23.2 scaled dot product, 13.7 without projections, 30.0 by the transformer; prefix 12.0
and causal 9.9 after 335 steps. Of sources over 16 words a sixth of the BLEU of 5 to 8 is left
without attention, a third with it: as in Bahdanau 2015. Three seeds, but one of scaled_dot, prefix
and causal.
"""

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, seeds

FILE = "configs/seq2seq_en_fr.py"
# A step's time over the transformer's, each alone on one core, batches of 2,048 tokens.
COST = {"none": 0.84, "additive": 0.97, "general": 0.93, "scaled_dot": 0.92, "plain": 0.89,
        "transformer": 1.0, "prefix": 1.79, "causal": 1.79}  # fmt: skip
STEPS = 600
DECIDING = ("none", "additive", "scaled_dot", "transformer")  # three seeds


def get_experiment(scale: str) -> Experiment:
    """At scale paper ten times the steps."""
    many = 10 * STEPS if scale == "paper" else STEPS
    kinds = [
        Variation(kind, {"config": f"{FILE}:{kind}", "steps": round(many / cost)})
        for kind, cost in COST.items()
    ]
    return Experiment(
        config=FILE,
        variations=seeds(kinds, 3, DECIDING if scale == "cpu" else None),
        metric="bleu",
        higher_is_better=True,
        columns=(*(f"bleu_words_{n}" for n in ("to_4", "to_8", "to_16", "over_16")), "chrf"),
        changes={"tensorboard": False, "eval_every": 100_000},
        paper=papers.BAHDANAU_TABLE1,
        paper_rows={"none": "RNNencdec-50", "additive": "RNNsearch-50"},
        base="none",
    )
