"""Does a trained encoder help where examples are few? Three tasks of GLUE, three seeds each.

    python -m transformer_lab sweep --experiment=experiments/glue.py --workdir=runs/glue \
        --init_from=hf:DIR

Devlin 2019, table 1. Only GLUE's validation sets are at hand (872, 408 and 277 examples): 60 % of
each are trained on here and 30 % tested, so that the scores lie far below the paper's. The encoder
of --init_from is BERT, RoBERTa or DistilBERT, such as MiniLM; "head" trains the classifier alone.

2026-11-30, one of 2 cores (AMD EPYC), 10 minutes, MiniLM-L6: test accuracy SST-2 0.809 (head 0.683,
larger class 0.508), MRPC 0.653 (0.650, 0.680), RTE 0.486 (0.430, 0.518): with 523 sentences it
learns the one, and from 245 and 166 pairs nothing. By the encoder of runs/masking (masking_bert,
80/10/10, 800 steps), Intel Xeon, 12 minutes: 0.587 (0.589), 0.680 (0.680), 0.534 (0.530).
"""

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, grid, seeds

FILE = "configs/finetune_sentiment.py"
TASKS = [Variation(task, {"data.source": task}) for task in ("sst2", "mrpc", "rte")]
STARTS = [Variation(start, {"config": f"{FILE}:{start}"}) for start in ("full", "head")]
SMALL = {
    "epochs": 4.0, "eval_every": 1000, "save_every": 1000, "keep": 1, "log_every": 10,
    "batch.buckets": 1, "batch.max_length": 128, "optimizer.warmup_steps": 5,
    "data.validation_share": 0.1, "data.test_share": 0.3, "tensorboard": False,
}  # fmt: skip


def get_experiment(scale: str) -> Experiment:
    """Both scales are one: there are no more examples."""
    return Experiment(
        config=FILE,
        variations=seeds(grid(TASKS, STARTS), 3),
        metric="accuracy",
        higher_is_better=True,
        changes=SMALL,
        base={f"{task.row},head": f"{task.row},full" for task in TASKS},
        needs_init_from=True,
    )
