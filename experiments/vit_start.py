"""Does a ViT that has seen other images first need fewer of its own?

    python -m transformer_lab train --config=configs/vit_fashion_mnist.py:long --workdir=runs/vit \
        --config.model.layers=3 --config.model.width=64 --config.model.heads=2 \
        --config.model.feed_forward_width=128 --config.steps=1200
    python -m transformer_lab sweep --experiment=experiments/vit_start.py --workdir=runs/vit_start

Dosovitskiy 2021, table 5 and figure 4: what a ViT saw before decides what it makes of few images.
Here shares of 719 handwritten digits (8 x 8 pixels, made 28 x 28), by a ViT from scratch and by the
ViT of the first command, which knows clothes; its head starts anew. All make as many steps, by the
rate of four that was best for either start on 359 digits after a tenth of the images; 719 others
are the test.

2026-11-30, one of 2 cores (Intel Xeon), 23 minutes, three seeds: with 36, 72, 216 and 719 digits
0.788, 0.908, 0.963 and 0.978 from scratch, 0.848, 0.929, 0.970 and 0.984 from clothes, by a rate of
0.01; with 72 the difference is within noise.
"""

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, grid, seeds, vary

FILE, FROM = "configs/vit_fashion_mnist.py", "runs/vit"
SHARES, TRIED = (5, 10, 30, 100), "10_percent"
RATES, BEST = (1e-3, 3e-3, 1e-2, 3e-2), 1e-2
STARTS = [Variation("plain", {}), Variation("clothes", {"init_from": FROM})]


def get_experiment(scale: str) -> Experiment:
    """Rows START,SHARE_percent; three seeds of the rates that won. Both scales are one."""
    shares = vary("data.share", {f"{n}_percent": n / 100 for n in SHARES})
    rates = vary("optimizer.learning_rate", RATES)
    won = [row.row for row in grid(STARTS, shares, vary("optimizer.learning_rate", [BEST]))]
    rows = [row for row in grid(STARTS, shares, rates) if row.row in won or TRIED in row.row]
    return Experiment(
        config=FILE,
        variations=seeds(rows, 3, won),
        tuned="learning_rate",
        metric="accuracy",
        higher_is_better=True,
        columns=("loss",),
        changes={
            "steps": 300, "batch.rows": 64, "data.source": "digits", "data.validation_share": 0.2,
            "data.test_share": 0.4, "optimizer.warmup_steps": 30, "augment.flip": 0.0,
            "augment.crop_padding": 2, "eval_every": 100_000, "save_every": 300, "keep": 1,
            "model.layers": 3, "model.width": 64, "model.heads": 2,
            "model.feed_forward_width": 128, "data.size": (28, 28), "tensorboard": False,
        },
        base={f"clothes,{n}_percent": f"plain,{n}_percent" for n in SHARES},
    )  # fmt: skip
