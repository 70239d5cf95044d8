"""What do heads, sizes, dropout, label smoothing and learned positions do to a translator?

python -m transformer_lab sweep --experiment=experiments/vaswani_table3.py --workdir=runs/table3

Vaswani 2017, table 3, rows A to E, on English to French software strings (cpu), or with the big
model on WMT14 and its newstest2014 (paper; the table's BLEU is of newstest2013, without averaged
checkpoints). A head's values are as wide as its keys here, so that row B narrows both.

Scale cpu: 19 rows of 1,600 steps, three seeds of the rows in `DECIDING`; 39 runs of 4 to 6 minutes
of one core. The norm stands first: last, as published, the base learns too slowly for so few steps.

2026-11-30, one of 2 cores (Intel Xeon), 29 of the runs, BLEU of three seeds: base 33.3, one head
28.9, half the width 24.1, no dropout 37.0, one layer 32.6; of one: keys of a quarter 26.1, 32 heads
30.0, four layers 28.7, double the width 35.6, learned positions 31.5.
"""

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, seeds

LABELS = {
    "base": "base", "A_heads_x1": "A, 1 head", "A_heads_x4": "A, 4 heads",
    "A_heads_x16": "A, 16 heads", "A_heads_x32": "A, 32 heads", "B_key_quarter": "B, d_k = 16",
    "B_key_half": "B, d_k = 32", "C_layers_third": "C, N = 2", "C_layers_two_thirds": "C, N = 4",
    "C_layers_four_thirds": "C, N = 8", "C_width_half": "C, d_model = 256",
    "C_width_double": "C, d_model = 1024", "C_hidden_half": "C, d_ff = 1024",
    "C_hidden_double": "C, d_ff = 4096", "D_dropout_0": "D, dropout 0.0",
    "D_dropout_0.2": "D, dropout 0.2", "D_smoothing_0": "D, smoothing 0.0",
    "D_smoothing_0.2": "D, smoothing 0.2", "E_learned": "E, learned positions",
}  # fmt: skip


DECIDING = (  # sentences rest on them: three seeds at scale cpu
    "base", "A_heads_x1", "A_heads_x32", "B_key_quarter", "C_layers_third", "C_layers_four_thirds",
    "C_width_half", "D_dropout_0", "D_dropout_0.2", "E_learned",
)  # fmt: skip
BIG = Variation("big", {"config": "configs/transformer_big.py"})


def variations(layers: int, width: int, heads: int, rate: float) -> list[Variation]:
    """The table's rows around a base model with heads of width / heads each; the learning rate
    goes with the root of 1 / width (equation 3)."""
    key, rates = width // heads, {x: {"optimizer.learning_rate": rate * x**-0.5} for x in (0.5, 2)}
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
    for row in rows:
        row.changes.update(rates.get(row.changes.get("model.width", width) / width, {}))
    smoothing = (Variation(f"D_smoothing_{x:g}", {"task.label_smoothing": x}) for x in (0.0, 0.2))
    return [*rows[:-1], *smoothing, rows[-1]]


def get_experiment(scale: str) -> Experiment:
    """1,600 steps of a model of 3 layers and width 128, or the base model."""
    small = scale == "cpu"
    rows = variations(3, 128, 8, 3e-3)
    if not small:
        rows = [*variations(6, 512, 8, (512 * 4000) ** -0.5), BIG]
    return Experiment(
        config="configs/translate_en_fr.py" if small else "configs/transformer_base.py",
        variations=seeds(rows, 3, DECIDING if small else None),
        metric="bleu",
        higher_is_better=True,
        columns=("perplexity", "chrf", "loss"),
        also=("perplexity",),
        changes={"average": 1} | ({
            "steps": 1600, "batch.tokens_per_batch": 1024, "eval_every": 1600, "save_every": 800,
            "model.layers": 3, "model.width": 128, "model.heads": 8, "model.head_dim": 16,
            "model.feed_forward_width": 512, "optimizer.warmup_steps": 160, "optimizer.b1": 0.9,
            "optimizer.b2": 0.98, "optimizer.epsilon": 1e-9, "tensorboard": False, "keep": 1,
        } if small else {}),
        paper=papers.VASWANI_TABLE3,
        paper_rows=LABELS | ({} if small else {"big": "big"}),
        compares={"BLEU, newstest2013": "bleu", "perplexity, newstest2013": "perplexity"},
        base="base",
    )  # fmt: skip
