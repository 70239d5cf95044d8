"""Does one small T5 for five tasks do each as well as a model of its own?

python -m transformer_lab sweep --experiment=experiments/multitask.py --workdir=runs/multitask

Here from scratch: the mixture of configs/t5_mixture.py, and the same model on each task alone for
as many of its examples. Raffel 2020, table 11, asks something else: there the best mixture (GLUE
81.42) is beside pre-training and fine-tuning on each task (83.28).

2026-11-30, one of 2 cores (Intel Xeon), 71 minutes, three seeds: translation 6.43 BLEU in the
mixture and 13.21 alone, sentiment 0.713 and 0.740 (within noise); one seed: ROUGE-1 of headings
4.20 and 0.36; questions and next sentences are not learned by either. 2026-11-28, three times as
many steps, one seed: 14.71 and 25.45 BLEU, sentiment 0.726 and 0.756, ROUGE-1 3.18 and 7.30.
"""

from transformer_lab.sweeps.experiment import Experiment, load_module
from transformer_lab.sweeps.variations import Variation, seeds

FILE = "configs/t5_mixture.py"
SCORES = {  # of each task, the first with a verdict
    "translate": ("bleu",), "summarize": ("rouge1", "rougeL"), "sentiment": ("accuracy",),
    "question": ("f1", "exact_match"), "next_sentence": ("accuracy",),
}  # fmt: skip
DECIDING = ("mixture", "translate", "sentiment")  # three seeds


def get_experiment(scale: str) -> Experiment:
    """1,000 steps of the mixture. At scale paper T5 small's sizes on the same data, 30,000 steps
    and three seeds of all."""
    config, many = load_module(FILE), 1 / 3 if scale == "cpu" else 10
    rows = [
        Variation(
            task or "mixture",
            {"config": f"{FILE}:{task}", "steps": round(many * config.STEPS)}
            | ({"epochs": many * config.EPOCHS[task]} if task else {}),
        )
        for task in ("", *SCORES)
    ]
    large = {"model.layers": 6, "model.width": 512, "model.heads": 8, "model.head_dim": 64,
             "model.feed_forward_width": 2048}  # fmt: skip
    first, *others = [f"{task}_{names[0]}" for task, names in SCORES.items()]
    return Experiment(
        config=FILE,
        variations=seeds(rows, 3, DECIDING if scale == "cpu" else None),
        metric=first,
        higher_is_better=True,
        columns=tuple(f"{task}_{name}" for task, names in SCORES.items() for name in names)[1:],
        changes={"tensorboard": False} | ({} if scale == "cpu" else large),
        base="mixture",
        also=tuple(others),
    )
