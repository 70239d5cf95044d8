"""What do heads, sizes, dropout, label smoothing and learned positions do to a translator?

python -m transformer_lab sweep --experiment=experiments/vaswani_table3.py --workdir=runs/table3

Vaswani 2017, table 3, rows A to E, on English to French software strings (cpu) or WMT14 (paper). A
head's values are as wide as its keys here, so that row B narrows both.

Scale cpu: 19 runs of 450 steps, one seed, 47 minutes of training on one core.

2026-11-28, BLEU: base 15.19; 1 and 32 heads 14.75 and 13.37; keys of a quarter 12.47; half and
double the width 8.17 and 15.41, the feed-forward 14.21 and 15.99; learned positions 13.91: the
paper's direction. The other way, in so few steps: no dropout 18.48, four layers 11.51.
"""

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation

PAPER = {  # BLEU on newstest2013; the letters are the table's
    "base": 25.8, "A_heads_x1": 24.9, "A_heads_x4": 25.5, "A_heads_x16": 25.8, "A_heads_x32": 25.4,
    "B_key_quarter": 25.1, "B_key_half": 25.4, "C_layers_third": 23.7, "C_layers_two_thirds": 25.3,
    "C_layers_four_thirds": 25.5, "C_width_half": 24.5, "C_width_double": 26.0,
    "C_hidden_half": 25.4, "C_hidden_double": 26.2, "D_dropout_0": 24.6, "D_dropout_0.2": 25.5,
    "D_smoothing_0": 25.3, "D_smoothing_0.2": 25.7, "E_learned": 25.7,
}  # fmt: skip


def variations(layers: int, width: int, heads: int) -> list[Variation]:
    """The table's rows around a base model; heads of width / heads each."""
    key = width // heads
    changes = {
        "base": {},
        **{f"A_heads_x{n}": {"heads": n, "head_dim": width // n} for n in (1, 4, 16, 32)},
        "B_key_quarter": {"head_dim": key // 4},
        "B_key_half": {"head_dim": key // 2},
        "C_layers_third": {"layers": layers // 3},
        "C_layers_two_thirds": {"layers": layers * 2 // 3},
        "C_layers_four_thirds": {"layers": layers * 4 // 3},
        "C_width_half": {"width": width // 2, "head_dim": key // 2},
        "C_width_double": {"width": width * 2, "head_dim": key * 2},
        "C_hidden_half": {"feed_forward_width": width * 2},
        "C_hidden_double": {"feed_forward_width": width * 8},
        "D_dropout_0": {"dropout": 0.0},
        "D_dropout_0.2": {"dropout": 0.2},
        "E_learned": {"positions": "learned"},
    }
    rows = [Variation(name, {f"model.{k}": v for k, v in x.items()}) for name, x in changes.items()]
    smoothing = (Variation(f"D_smoothing_{x:g}", {"task.label_smoothing": x}) for x in (0.0, 0.2))
    return [*rows[:-1], *smoothing, rows[-1]]


def get_experiment(scale: str) -> Experiment:
    """450 steps of a model of 3 layers and width 128, or the base model."""
    small = scale == "cpu"
    return Experiment(
        config="configs/translate_en_fr.py" if small else "configs/transformer_base.py",
        variations=variations(3, 128, 8) if small else variations(6, 512, 8),
        metric="bleu",
        higher_is_better=True,
        columns=("chrf", "loss"),
        changes={
            "steps": 450, "model.layers": 3, "model.width": 128, "model.heads": 8,
            "model.head_dim": 16, "model.feed_forward_width": 512, "tensorboard": False,
        } if small else {},
        paper=PAPER,
        source="Vaswani 2017, table 3, newstest2013",
    )  # fmt: skip
