"""What do attention, linear attention, state spaces and recurrent nets remember, and how far?

python -m transformer_lab sweep --experiment=experiments/long_range.py --workdir=runs/long_range
"""

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import seeds, vary

FILE = "configs/long_range.py"
EQUAL = "steps"  # or "time": as long as attention trains, by the config's COST
SOURCES = {"cpu": ("mqar", "induction_heads")}
SEEDS = 3
LENGTHS = (64, 128, 256)  # beyond those of training; each source has some of them
MODELS = (
    "attention", "lstm", "linear", "retention", "rwkv", "gated", "mamba2", "mamba", "hybrid", "s4d",
)  # fmt: skip
PAPER = {
    "induction_heads_attention": "1.000; at twice the length 0.836, four times 0.313",
    "induction_heads_mamba": "1.000 up to 4,096 times the length",
    "selective_copying_mamba": 0.998,
    "selective_copying_s4d": "0.183 (S4)",
    "listops_attention": 0.3637,
    "listops_linear": 0.1613,
    "listops_s4d": "0.596 (S4)",
    "listops_rwkv": 0.5588,
}


def get_experiment(scale: str) -> Experiment:
    """At scale cpu recall and induction heads, at scale paper all sources."""
    every = "mqar", "induction_heads", "selective_copying", "listops", "pixels"
    files = {
        f"{source}_{model}": f"{FILE}:{model}+{source}+{EQUAL}"
        for model in MODELS
        for source in SOURCES.get(scale, every)
    }
    return Experiment(
        config=FILE,
        variations=seeds(vary("config", files), SEEDS),
        metric="accuracy",
        higher_is_better=True,
        columns=("exact", *(f"accuracy_{n}" for n in LENGTHS), "majority_baseline"),
        changes={"tensorboard": False},
        paper=PAPER,
        source="Gu 2023, tables 1 and 11; Tay 2020, table 1; Gu 2022b; Peng 2023, table 4",
    )
