"""Does one small T5 for five tasks do each as well as a model of its own?

python -m transformer_lab sweep --experiment=experiments/multitask.py --workdir=runs/multitask

Here from scratch: the mixture of configs/t5_mixture.py, and the same model on each task alone for
as many of its examples. Raffel 2020, table 11, asks something else: there the best mixture (GLUE
81.42) is beside pre-training and fine-tuning on each task (83.28).

2026-11-28, 24 minutes of one core for the mixture, 29 for the others: translation 14.7 BLEU in the
mixture and 25.5 alone, sentiment 0.726 and 0.756, ROUGE-1 of headings 3.2 and 7.3; questions and
next sentences are not learned by either; one seed.
"""

from transformer_lab.sweeps.experiment import Experiment, load_module
from transformer_lab.sweeps.variations import Variation, seeds

FILE = "configs/t5_mixture.py"
SCORES = (
    *("translate_bleu", "summarize_rouge1", "summarize_rougeL", "sentiment_accuracy"),
    *("question_exact_match", "question_f1", "next_sentence_accuracy"),
)


def get_experiment(scale: str) -> Experiment:
    """At scale paper T5 small's sizes on the same data, ten times the steps and three seeds."""
    config, many = load_module(FILE), 1 if scale == "cpu" else 10
    rows = [
        Variation(
            task or "mixture",
            {"config": f"{FILE}:{task}", "steps": many * config.STEPS}
            | ({"epochs": many * config.EPOCHS[task]} if task else {}),
        )
        for task in ("", *config.EPOCHS)
    ]
    large = {"model.layers": 6, "model.width": 512, "model.heads": 8, "model.head_dim": 64,
             "model.feed_forward_width": 2048}  # fmt: skip
    return Experiment(
        config=FILE,
        variations=rows if scale == "cpu" else seeds(rows, 3),
        metric="loss",
        columns=SCORES,
        changes={"tensorboard": False} | ({} if scale == "cpu" else large),
    )
