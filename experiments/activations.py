"""Does a gate in the feed-forward layer pay at equal parameters?

python -m transformer_lab sweep --experiment=experiments/activations.py --workdir=runs/activations

Shazeer 2020, table 1: gated layers, with two thirds of the hidden units, lower the held-out loss.
Here the small GPT on the Brown corpus with 512 hidden units or, gated, 344.

2026-11-30, 25 minutes of one core, ReLU, GELU, GeGLU and SwiGLU: bits per byte of held-out texts
1.910, 1.903, 1.915 and 1.908 after 1,000 steps, deviations of 0.001 to 0.003. Gates are behind by
0.01 after 250 steps and level from 500 on. The paper has 524,288 steps. The other three rows have
been run for 300 steps alone (2026-11-28).
"""

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, seeds

PLAIN, GATED = ("relu", "gelu", "silu"), ("glu", "reglu", "geglu", "swiglu")
LABELS = {"relu": "ReLU", "gelu": "GELU", "silu": "Swish", "glu": "GLU", "reglu": "ReGLU",
          "geglu": "GEGLU", "swiglu": "SwiGLU"}  # fmt: skip


def get_experiment(scale: str) -> Experiment:
    """Three seeds of each, of 1,000 steps, or of 524,288 of T5 base's decoder on C4: batches of
    65,536 tokens, Adafactor without a warm-up, no dropout, as published; there the loss is that
    of hidden spans, here of the next token."""
    large = papers.C4 | {
        "steps": 524_288, "model.layers": 12, "model.width": 768, "model.heads": 12,
        "model.head_dim": 64, "model.max_length": 512, "batch.rows": 128, "batch.length": 512,
        "tokenizer.vocab_size": 32_000, "eval_every": 20_000, "save_every": 10_000,
        "optimizer.name": "adafactor", "optimizer.schedule": "flat_inverse_sqrt",
        "optimizer.learning_rate": 1e-2, "optimizer.warmup_steps": 10_000,
    }  # fmt: skip
    width = 512 if scale == "cpu" else 3072
    rows = [
        Variation(
            name,
            {
                "model.activation": name,
                "model.feed_forward_width": width if name in PLAIN else round(width / 12) * 8,
            },
        )
        for name in (*PLAIN, *GATED)
    ]
    return Experiment(
        config="configs/gpt_positions.py:rope",
        variations=seeds(rows, 3),
        metric="bits_per_byte",
        columns=("perplexity",),
        changes={"task.other_lengths": (), "tensorboard": False}
        | ({"steps": 1000} if scale == "cpu" else large),
        paper=papers.SHAZEER_TABLE1,
        paper_rows=LABELS,
        base="relu",
    )
