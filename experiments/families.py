"""An encoder, a decoder or both: which family for classes, and which for translation?

python -m transformer_lab sweep --experiment=experiments/families.py --workdir=runs/families

Raffel 2020, table 2, without its pre-training: an encoder-decoder, one stack that reads the source
both ways (prefix LM) or from left to right alone, and, for the classes only, an encoder. All have
about as many parameters, where the paper's encoder-decoder has twice those of one stack. Each
learns one task a run, the classes as words but for the encoder.
`sentiment_accuracy` is that on 500 held-out film reviews (the larger class has 0.608); `accuracy`
is in the encoder's row that of all 1,291, else of tokens.

Scale cpu: two epochs of the reviews, one seed, and 500 steps of translation, three; 13 runs. At
scale paper 20 times as long with width 512, three seeds, on the same small data.

2026-11-30, one of 2 cores (Intel Xeon), 72 minutes: translation 19.66 BLEU by the encoder-decoder,
16.15 by the prefix and 16.92 by the causal stack, both worse as published; of the reviews they have
0.708, 0.718 and 0.718, the encoder 0.721 of its 1,291: from scratch the families do not differ
there.
"""

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment, load_module
from transformer_lab.sweeps.variations import Variation, seeds

FILE = "configs/families.py"
KINDS = {
    "encoder_decoder": "Encoder-decoder", "prefix": "Prefix LM", "causal": "Language model"
}  # fmt: skip
LABELS = {
    f"{kind},{task}": f"{label}, {name}"
    for kind, label in KINDS.items()
    for task, name in (("sentiment", "GLUE"), ("translate", "translation"))
}

DECIDING = [f"{kind},translate" for kind in KINDS]  # three seeds


def get_experiment(scale: str) -> Experiment:
    """Rows FAMILY,TASK."""
    small, large = scale == "cpu", {"model.width": 512, "model.heads": 8, "model.head_dim": 64}
    rows = []
    for run in load_module(FILE).RUNS:
        longer = {"epochs": 40.0} if run.endswith("sentiment") else {"steps": 10_000}
        more = {} if small else large | longer | {"model.feed_forward_width": 2048}
        rows.append(Variation(run, {"config": f"{FILE}:{run}"} | more))
    return Experiment(
        config=FILE,
        variations=seeds(rows, 3, DECIDING if small else None),
        metric="loss",
        columns=("sentiment_accuracy", "accuracy", "translate_bleu", "translate_chrf"),
        changes={"tensorboard": False},
        paper=papers.RAFFEL_TABLE2,
        paper_rows=LABELS,
        compares={"GLUE": "sentiment_accuracy", "BLEU, English to French": "translate_bleu"},
        base={row: f"encoder_decoder,{row.split(',')[1]}" for row in LABELS},
    )
