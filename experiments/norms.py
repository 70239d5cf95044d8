"""Where should the norm stand, which norm, and when are a warm-up and residuals needed?

python -m transformer_lab sweep --experiment=experiments/norms.py --workdir=runs/norms

A narrow GPT on the Brown corpus, by Adam (0.9, 0.98, 1e-9), from Xavier's initial values with
embeddings times the root of the width, as in Vaswani 2017, and a head of its own; a tenth of the
steps warms up. Xiong 2020 (figures 2 and 4): with the norm last, training fails without a warm-up,
with the norm first it needs none. Wang 2022 (DeepNorm): last, and stable. Zhu 2025: a tanh does as
well as a norm, its alpha 1 at widths up to 1,024 in language models (table 11). He 2016 (figure 1):
deep stacks without residuals hardly train. A run that diverges is a failed one.

Scale cpu: 24 layers, 300 steps, three seeds of the rows in `DECIDING`. Scale paper: 12 layers of
width 768 on C4, and of three learning rates for each row the one that is best on the validation
split.

2026-11-30, one of 2 cores (AMD EPYC), an hour and a half, bits per byte with a warm-up and without:
LayerNorm first 2.701 and 2.689, last 3.076 and 3.076 (the words' frequencies), last by DeepNorm
2.697 and 2.634, DyT 3.036 and 3.056; without a norm all runs diverge, without residuals 3.076.
"""

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, chain, grid, seeds, vary

NORMS = [
    Variation("post", {"model.norm_place": "post"}),
    Variation("deep", {"model.norm_place": "deep"}),
    *(
        Variation(f"pre_{norm}", {"model.norm_place": "pre", "model.norm": norm})
        for norm in ("layer_norm", "rms_norm", "dyt", "none")
    ),
]
DECIDING = ("post", "pre_layer_norm", "pre_dyt", "pre_none")  # sentences rest on them
RATES = (5e-4, 1e-3, 2e-3)
PAPER = papers.C4 | {
    "steps": 50_000, "batch.rows": 128, "batch.length": 512, "eval_every": 5_000,
    "save_every": 5_000, "tokenizer.vocab_size": 32_000,
}  # fmt: skip
BARE = [  # without residuals
    Variation("post_bare", {"model.norm_place": "post", "model.residual": False}),
    Variation("pre_layer_norm_bare", {"model.norm_place": "pre", "model.residual": False}),
]


def get_experiment(scale: str) -> Experiment:
    """24 layers of width 96 for 300 steps, or 12 of width 768 for 50,000 of 65,536 tokens."""
    small = scale == "cpu"
    sizes = {"model.layers": 24, "model.width": 96, "model.heads": 3, "steps": 300}
    sizes |= {"eval_every": 300}
    if not small:
        sizes = {"model.layers": 12, "model.width": 768, "model.heads": 24, **PAPER}
    warmup = [
        Variation("", {"optimizer.warmup_steps": sizes["steps"] // 10}),
        Variation("no_warmup", {"optimizer.warmup_steps": 1}),
    ]
    rows = chain(grid(NORMS, warmup), grid(BARE, warmup[:1]))
    base = {row.row: "pre_layer_norm" for row in rows}
    base |= {f"{row.row},no_warmup": row.row for row in NORMS}
    decide = [row.row for row in rows if row.row.split(",")[0] in DECIDING]
    return Experiment(
        config="configs/gpt_positions.py:rope",
        variations=seeds(rows, 3, decide)
        if small
        else seeds(grid(rows, vary("optimizer.learning_rate", RATES)), 3),
        tuned="" if small else "learning_rate",
        metric="bits_per_byte",
        columns=("perplexity",),
        changes=sizes
        | ({"optimizer.learning_rate": 1e-3} if small else {})
        | {
            "model.feed_forward_width": 4 * sizes["model.width"],
            "model.embedding_scale": True,
            "model.tie_head": False,
            "optimizer.name": "adam",
            "model.dyt_alpha": 1.0,
            "model.kernel_init": "xavier_uniform",
            "model.depth_scaled_init": False,
            "task.other_lengths": (),
            "tensorboard": False,
        },
        paper=papers.ZHU_TABLE1,
        paper_rows={"pre_layer_norm": "LN", "pre_dyt": "DyT"},
        base=base,
    )
