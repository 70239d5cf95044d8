"""Where should the norm stand, which one, who needs a warm-up, and who the residual?

python -m transformer_lab sweep --experiment=experiments/norms.py --workdir=runs/norms

A narrow GPT on the Brown corpus, by Adam, from Xavier's initial values with embeddings times the
root of the width, as in Vaswani 2017, and a head of its own. Xiong 2020 (figure 3): with the norm
last, training fails without a warm-up, with the norm first it needs none. Wang 2022 (DeepNorm):
last, and stable. Zhu 2025 (table 4): a tanh does as well as a norm. He 2016 (figure 1): deep stacks
without residuals hardly train. A run that diverges is a failed one.

Scale cpu: 6 layers, 400 steps, 14 runs of one seed, 28 minutes of training on one core.

2026-11-28, bits per byte: last 2.643 and 2.854 without a warm-up, DeepNorm 2.569 and 2.557, first
2.542 and 2.533 (RMSNorm the same, DyT 2.607 and 2.602), without residuals 3.075, the words'
frequencies: as the papers say, but that DyT is behind, and no norm at all ahead (2.485).
"""

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, chain, grid, seeds

NORMS = [
    Variation("post", {"model.norm_place": "post"}),
    Variation("deep", {"model.norm_place": "deep"}),
    *(
        Variation(f"pre_{norm}", {"model.norm_place": "pre", "model.norm": norm})
        for norm in ("layer_norm", "rms_norm", "dyt", "none")
    ),
]
BARE = [  # without residuals
    Variation("post_bare", {"model.norm_place": "post", "model.residual": False}),
    Variation("pre_layer_norm_bare", {"model.norm_place": "pre", "model.residual": False}),
]
WARMUP = [
    Variation("", {"optimizer.warmup_steps": 100}),
    Variation("no_warmup", {"optimizer.warmup_steps": 1}),
]


def get_experiment(scale: str) -> Experiment:
    """6 layers of width 96 for 400 steps, or 12 of width 768 for 20,000 and three seeds."""
    sizes = {"steps": 400, "model.layers": 6, "model.width": 96, "model.heads": 3}
    if scale == "paper":
        sizes = {"steps": 20_000, "model.layers": 12, "model.width": 768, "model.heads": 24}
        sizes["batch.rows"] = 64
    rows = chain(grid(NORMS, WARMUP), grid(BARE, WARMUP[:1]))
    return Experiment(
        config="configs/gpt_positions.py:rope",
        variations=seeds(rows, 3) if scale == "paper" else rows,
        metric="bits_per_byte",
        columns=("perplexity",),
        changes=sizes
        | {
            "model.feed_forward_width": 4 * sizes["model.width"],
            "model.embedding_scale": True,
            "model.tie_head": False,
            "optimizer.name": "adam",
            "optimizer.learning_rate": 1e-3,
            "model.kernel_init": "xavier_uniform",
            "model.depth_scaled_init": False,
            "task.other_lengths": (),
            "tensorboard": False,
        },
    )
