"""How little of a trained encoder must be trained anew for a task? Eight ways, three seeds each.

    python -m transformer_lab sweep --experiment=experiments/adaptation.py \
        --workdir=runs/adaptation --init_from=hf:DIR

Hu 2021, table 2, and Houlsby 2019, table 1: adapters, biases (BitFit) and low-rank changes (LoRA)
come within a point of full fine-tuning with a hundredth of its parameters, and little is saved.
Here film reviews, fresh or rotten, and the encoder of --init_from (BERT, RoBERTa or DistilBERT).

Scale cpu: 24 runs of 65 steps.

2026-11-30, MiniLM-L6 on 1,291 reviews of held-out films, one of 2 cores (Intel Xeon), 77 minutes:
full 0.781, LoRA of rank 16 0.775, adapters 0.770, last 2 layers 0.762, LoRA of rank 4 0.737, biases
0.726, LoRA of rank 1 0.694, head 0.685 (deviations 0.003 to 0.014). Paired by seed LoRA of rank 16
and adapters are not told from full fine-tuning, with 1 to 3 % of its parameters; the last layers
are 1.9 points behind, biases and LoRA of ranks 1 and 4 4 to 9.
"""

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, seeds

FILE = "configs/finetune_sentiment.py"
METHODS = [
    Variation("full", {"config": f"{FILE}:full"}),
    Variation("head", {"config": f"{FILE}:head"}),
    Variation("last_2", {"config": f"{FILE}:last", "adapt.last_layers": 2}),
    *(
        Variation(
            f"lora_{rank}",
            {"config": f"{FILE}:lora", "adapt.rank": rank, "adapt.alpha": 2.0 * rank},
        )
        for rank in (1, 4, 16)
    ),
    Variation("adapters", {"config": f"{FILE}:adapters"}),
    Variation("bias", {"config": f"{FILE}:bias"}),
]
CPU = {  # 65 steps of two shapes
    "epochs": 0.3, "eval_every": 1000, "save_every": 1000, "keep": 1, "log_every": 10,
    "batch.buckets": 2, "optimizer.warmup_steps": 10, "tensorboard": False,
}  # fmt: skip


def get_experiment(scale: str) -> Experiment:
    """At scale paper two epochs, as in the config file."""
    return Experiment(
        config=FILE,
        variations=seeds(METHODS, 3),
        metric="accuracy",
        higher_is_better=True,
        changes=CPU if scale == "cpu" else {},
        paper=papers.HU_TABLE2,
        paper_rows={
            "full": "FT", "bias": "BitFit", "adapters": "Adapter^D, 0.3M", "lora_16": "LoRA, r = 8",
        },
        base="full",
        needs_init_from=True,
    )  # fmt: skip
