"""An encoder, a decoder or both: which family for classes, and which for translation?

python -m transformer_lab.sweep --experiment=experiments/families.py --workdir=runs/families

Raffel 2020, table 2, without its pre-training: an encoder-decoder, one stack that reads the source
both ways (prefix LM) or from left to right alone, and, for the classes only, an encoder. All of
about as many parameters. The three learn the two tasks at once, half of the examples each, for
twice the steps on twice the tokens; `sentiment_accuracy` is theirs on 500 held-out film reviews
(the larger class has 0.608). `accuracy` is in the encoder's row that of all 1,291, else of tokens.

Scale cpu: 1,000 steps of configs/families.py, one seed; four runs, planned for 20 minutes on 2
cores. At scale paper 20,000 steps of width 512, three seeds, on the same small data. Not yet run.
"""

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, seeds

FILE = "configs/families.py"
KINDS = ("encoder", "encoder_decoder", "prefix", "causal")


def get_experiment(scale: str) -> Experiment:
    """Rows are the families; the encoder has half of the steps, which hold its task alone."""
    small = scale == "cpu"
    large = {"model.width": 512, "model.heads": 8, "model.head_dim": 64}
    large["model.feed_forward_width"] = 2048
    rows = []
    for kind in KINDS:
        changes = {} if small else large | {"steps": 10_000 if kind == "encoder" else 20_000}
        rows.append(Variation(kind, {"config": f"{FILE}:{kind}"} | changes))
    return Experiment(
        config=FILE,
        variations=rows if small else seeds(rows, 3),
        metric="loss",
        columns=("sentiment_accuracy", "accuracy", "translate_bleu", "translate_chrf"),
        changes={"tensorboard": False},
        paper={
            "encoder_decoder": "83.28, 26.98", "prefix": "81.82, 26.43", "causal": "74.70, 25.09",
        },
        source="Raffel 2020, table 2, by denoising: GLUE, EnDe",
    )  # fmt: skip
