"""How many images does a ViT need to be as good as a CNN, and how small should its patches be?

python -m transformer_lab sweep --experiment=experiments/vit_vs_cnn.py --workdir=runs/vit_vs_cnn

Dosovitskiy 2021, figures 3 and 4: of little data ResNets make more, of much the ViT. Here shares of
Fashion-MNIST's 54,000 training images, and Swin (Liu 2021) beside both. The nets train for about
the same time, the same for every share, on flipped and shifted images, and with the weight decay of
their config files. Then the ViT on all images with patches of other sizes, for as many steps (Beyer
2023, FlexiViT, figure 2: smaller patches see more and cost more), and how far each layer attends on
average (Dosovitskiy 2021, figure 7: the farther, the deeper; here in patches).

Scale cpu: nets of 0.1 million parameters, three seeds to a tenth of the images and one above; 36
runs, planned for an hour on 2 cores. `--scale=paper`: the nets of the config files, 16,000 steps
of each, three seeds.

2026-11-28: of 1, 3, 10, 30, 100 per cent the ViT has 0.751, 0.806, 0.813, 0.820, 0.825 and the CNN
0.802, 0.843, 0.853, 0.857, 0.862 (in more time: a step took 1.2 of the ViT's, not 0.7). The ViT is
5.1 points behind at 1 per cent and 3.7 to 4.0 at all others: it does not catch up. Patches of 2, 4,
7 and 14 have 0.827, 0.826, 0.836 and 0.847, in 4.6, 1, 0.4 and 0.25 of the time, one seed.
2026-11-30, Swin (`--only=swin`): 0.799, 0.836, 0.838, 0.839, 0.842, between the two at each share.
"""

from matplotlib.figure import Figure

from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, chain, grid, seeds, vary

VIT = "configs/vit_fashion_mnist.py:long"
FILES = {
    "vit": VIT, "cnn": "configs/cnn_fashion_mnist.py", "swin": "configs/swin_fashion_mnist.py",
}  # fmt: skip
FEW, MANY = (1, 3, 10), (30, 100)  # per cent of the images: of several seeds, of one
PATCHES = (2, 7, 14)
SIZES = {  # scale cpu
    "vit": {
        "model.layers": 3, "model.width": 64, "model.heads": 2, "model.feed_forward_width": 128,
    },
    "cnn": {"model.stages": (1, 1, 1), "model.width": 12},
    "swin": {"model.patch_size": (4, 4), "model.window": 4},  # 7 x 7 patches, then 4 x 4
}  # fmt: skip
# Side by side on a CPU a step of the small CNN took 0.7 of the small ViT's, of patch 2 five times.
STEPS = {
    "cpu": {"vit": 600, "cnn": 850, "swin": 600},
    "paper": {"vit": 16_000, "cnn": 16_000, "swin": 16_000},
}
COMMON = {"eval_every": 100_000, "save_every": 500, "keep": 1, "tensorboard": False}
COMMON |= {"augment.crop_padding": 2}


def get_experiment(scale: str) -> Experiment:
    """Rows NET,SHARE_percent, and patch_SIZE."""
    nets = [
        Variation(
            net,
            {"config": file, "steps": STEPS[scale][net], **(SIZES[net] if scale == "cpu" else {})},
        )
        for net, file in FILES.items()
    ]
    shares = lambda some: vary("data.share", {f"{n}_percent": n / 100 for n in some})  # noqa: E731
    patches = vary("model.patch_size", {f"patch_{n}": (n, n) for n in PATCHES})
    patches = [Variation(row, nets[0].changes | changes) for row, changes in patches]
    return Experiment(
        config=VIT,
        variations=chain(
            seeds(grid(nets, shares(FEW)), 3),
            seeds(chain(grid(nets, shares(MANY)), patches), 1 if scale == "cpu" else 3),
        ),
        metric="accuracy",
        higher_is_better=True,
        columns=("loss", *(f"attention_distance_{i}" for i in range(3))),
        changes=COMMON,
        base={
            f"{x},{n}_percent": f"cnn,{n}_percent" for x in ("vit", "swin") for n in (*FEW, *MANY)
        },
        plot=plot,
    )


def plot(table) -> Figure:
    """Accuracy by the share of images, by the time of each size of patch; distance by depth."""
    figure = Figure((13, 3.8), layout="constrained")
    by_share, by_time, by_depth = figure.subplots(1, 3)
    found = {row.name: row for row in table.rows}
    for net in SIZES:
        rows = [found[f"{net},{n}_percent"] for n in (*FEW, *MANY)]
        means = [row.mean("test/accuracy") for row in rows]
        spread = [row.deviation("test/accuracy") for row in rows]
        by_share.errorbar((*FEW, *MANY), means, spread, fmt="o-", capsize=3, label=net)
    for n in sorted((4, *PATCHES)):
        row = found["vit,100_percent" if n == 4 else f"patch_{n}"]
        x, y = row.mean("seconds"), row.mean("test/accuracy")
        by_time.plot(x, y, "ko")
        by_time.annotate(f"{n} x {n}", (x, y))
        apart = [row.mean(f"test/attention_distance_{i}") * n for i in range(12)]
        by_depth.plot(apart, "o-", label=f"{n} x {n}")
    by_share.set(xscale="log", xlabel="training images used, per cent", ylabel="test accuracy")
    by_time.set(xscale="log", xlabel="seconds of training", ylabel="test accuracy")
    by_depth.set(xlabel="layer", ylabel="mean attention distance, pixels")
    by_time.tick_params(axis="x", which="minor", labelbottom=False)
    by_depth.legend()
    by_share.legend()
    return figure
