"""How much should T5 hide, and in spans of which length?

python -m transformer_lab sweep --experiment=experiments/span_corruption.py --workdir=runs/spans

Raffel 2020, table 6 (10, 15, 25 and 50 % hidden) and table 7 (spans of 2, 3, 5 and 10 tokens on
average), which find that little depends on either but 50 %. Here one small T5 learns hidden spans
and film reviews in one mixture, so that what the spans are worth shows in the reviews: the paper
pre-trains and then fine-tunes. The loss of the spans is not comparable from row to row.

Not run yet: 24 runs of 600 steps, by `multitask`'s times about 5 minutes of one core each, 2 hours
in all. Scale paper: T5 small's sizes, 20,000 steps on the same small data.
"""

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import seeds, vary

FILE = "configs/t5_mixture.py"
SMALL = {"model.layers": 6, "model.width": 512, "model.heads": 8, "model.head_dim": 64,
         "model.feed_forward_width": 2048, "steps": 20_000}  # fmt: skip


def get_experiment(scale: str) -> Experiment:
    """Rows rate=R at spans of three tokens, and mean_length=N at 15 %."""
    rows = vary("data.spans.rate", [0.15, 0.1, 0.25, 0.5])
    rows += vary("data.spans.mean_length", [1.0, 2.0, 5.0, 10.0])
    small = {"steps": 600, "eval_every": 600, "save_every": 200, "average": 1}
    return Experiment(
        config=FILE,
        variations=seeds(rows, 3),
        metric="sentiment_accuracy",
        higher_is_better=True,
        columns=("loss",),
        changes={"data.tasks": ("sentiment", "spans"), "tensorboard": False}
        | (small if scale == "cpu" else SMALL),
        paper=papers.RAFFEL_TABLE7,
        paper_rows={"rate=0.15": "3", "mean_length=1.0": "i.i.d."},
        base="rate=0.15",
    )
