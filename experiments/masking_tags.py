"""What is an encoder worth that saw [MASK] in training, or never did?

python -m transformer_lab sweep --experiment=experiments/masking_bert.py --workdir=runs/masking
python -m transformer_lab sweep --experiment=experiments/masking_tags.py --workdir=runs/mask_tags

Devlin 2019, table 8, judges what stood in hidden tokens' places by what comes of the encoders:
named entities by fine-tuning, and by a classifier on features. Here parts of speech on held-out
documents of the Brown corpus: the encoders of the first command, with all weights trained (`full`)
or with a classifier on states that stay as they are (`head`).

2026-11-30, one of 2 cores (Intel Xeon), three seeds, 16 minutes: by `head` 0.771 of the words right
after 80/10/10, 0.679 after [MASK] alone, 0.572 after random tokens alone. As by features in the
paper, an encoder that predicts at a [MASK] alone has the worse states for words to be read. Not
run: `full` and the other shares, 20 runs of about 2 minutes.
"""

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment, load_module
from transformer_lab.sweeps.variations import Variation

FROM = "runs/masking"
RATES = {"full": 3e-4, "head": 3e-3}


def get_experiment(scale: str) -> Experiment:
    """Rows PRETRAINED,TRAINED: a seed for each run of the first sweep."""
    first = load_module("experiments/masking_bert.py")
    starts = [
        Variation(f"{run.row},{method}", _start(f"{FROM}/{run.name}", method, run.changes["seed"]))
        for method in RATES
        for run in first.get_experiment(scale).variations
    ]
    rows = dict.fromkeys(run.row for run in starts)
    return Experiment(
        config="configs/finetune_pos.py",
        variations=starts,
        metric="accuracy",
        higher_is_better=True,
        columns=("loss",),
        changes={
            "epochs": 0.22 if scale == "cpu" else 3.0, "eval_every": 1000, "save_every": 1000,
            "keep": 1, "optimizer.warmup_steps": 20, "batch.max_length": 64, "batch.buckets": 2,
            "task.samples": 0, "tensorboard": False,
        },
        paper=papers.DEVLIN_TABLE8_ENTITIES,
        paper_rows={
            f"{name},{method}": f"{'/'.join(map(str, shares))}, {method}"
            for shares, name in first.NAMES.items()
            for method in RATES
        },
        base={row: f"{first.NAMES[80, 10, 10]},{row.split(',')[1]}" for row in rows},
    )  # fmt: skip


def _start(directory: str, method: str, seed: int) -> dict:
    rate = {"optimizer.learning_rate": RATES[method]}
    return {"init_from": directory, "adapt.method": method, "seed": seed} | rate
