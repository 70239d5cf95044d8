"""Does contrastive learning need large batches, and does a sigmoid need smaller ones?

python -m transformer_lab sweep --experiment=experiments/clip_batch.py --workdir=runs/clip_batch

Zhai 2023 (SigLIP), figure 2: by small batches the sigmoid is ahead of the softmax, and both are
sated at 32 thousand. Here emoji and their names, batches of 32 to 256, with as many examples for
all (the smaller the batch, the more steps) and, in the rows "equal_steps", as many steps as a batch
of 128 makes; rates grow with the root of the batch, a tenth of the steps warms up. The zero-shot
scores are of 382 held-out concepts (chance: top-1 0.0026).

Scale cpu: 25,600 examples, a twentieth of what configs/clip_emoji.py sees, by its model with two
layers a tower; three seeds, 42 runs. At scale paper 819,200 examples.

2026-11-30, one of 2 cores (Intel Xeon), an hour: at equal steps top-5 grows with the batch (softmax
0.044, 0.058, 0.104 and 0.172 by 32, 64, 128 and 256), at equal examples it hardly depends on it
(0.119, 0.099, 0.104, 0.086); there the losses are within noise of each other, and no order of them
by the batch is to be seen at equal steps.
"""

from matplotlib.figure import Figure

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, grid, seeds, vary

FILE, BATCHES, LOSSES = "configs/clip_emoji.py", (32, 64, 128, 256), ("softmax", "sigmoid")
EXAMPLES = {"cpu": 25_600, "paper": 819_200}


def get_experiment(scale: str) -> Experiment:
    """Rows LOSS,rows=BATCH, and with ",equal_steps" as many steps as a batch of 128 makes."""
    losses = vary("config", {loss: f"{FILE}:{loss}" for loss in LOSSES})
    batches = [_row(f"rows={rows}", rows, EXAMPLES[scale] // rows) for rows in BATCHES]
    batches += [
        _row(f"rows={rows},equal_steps", rows, EXAMPLES[scale] // 128)
        for rows in BATCHES
        if rows != 128
    ]
    small = {"model.image.layers": 2, "eval_every": 100_000, "save_every": 400, "keep": 1}
    return Experiment(
        config=FILE,
        variations=seeds(grid(losses, batches), 3),
        metric="zero_shot_top5",
        higher_is_better=True,
        columns=("zero_shot_top1", "category_top1", "image_to_text_recall_10"),
        also=("category_top1",),
        changes={"tensorboard": False, "task.samples": 0} | (small if scale == "cpu" else {}),
        base={f"sigmoid,{row.row}": f"softmax,{row.row}" for row in batches}
        | {f"softmax,{row.row}": "softmax,rows=128" for row in batches},
        plot=plot,
    )


def _row(name: str, rows: int, steps: int) -> Variation:
    rate = round(4e-3 * (rows / 256) ** 0.5, 6)
    return Variation(
        name,
        {
            "batch.rows": rows, "steps": steps, "optimizer.warmup_steps": steps // 10,
            "optimizer.learning_rate": rate,
        },
    )  # fmt: skip


def plot(table) -> Figure:
    """Zero-shot accuracy by the batch; a line a loss."""
    figure = Figure((9, 3.8), layout="constrained")
    found = {row.name: row for row in table.rows}
    for axes, top in zip(figure.subplots(1, 2), (1, 5), strict=True):
        for loss in LOSSES:
            means = [found[f"{loss},rows={n}"].mean(f"test/zero_shot_top{top}") for n in BATCHES]
            axes.plot(BATCHES, means, "o-", label=loss)
        axes.set(xscale="log", xlabel="examples of a batch", ylabel=f"zero-shot top-{top}")
        axes.set_xticks(BATCHES, map(str, BATCHES))
    axes.legend()
    return figure
