"""Which modifications of the block pay at equal FLOPs, and do gains on one task show on another?

python -m transformer_lab sweep --experiment=experiments/modifications.py --workdir=runs/mods

Narang 2021, table 1: of forty modifications few do, gated units and RMSNorm among them. Here each
alone, on one base (ReLU, LayerNorm first, sinusoids, biases, a tied head), as a language model and
as a translator. Gated units have two thirds of the width, one head of keys and values gives the
feed-forward what it saves; all else leaves a step's FLOPs as they are, to a hundredth, so that all
rows of a task have as many steps. The plot: by how much each lowers the held-out loss, one task
against the other.

Scale cpu: the small GPT on the Brown corpus for 400 steps and the translator of software strings
for 300, both from Xavier's initial values and by Muon, so that only the task differs; three seeds
of what decides, 46 runs, two and a half hours of one core. At scale paper GPT-2 small, the base
translator, three seeds.

2026-11-30, one of 2 cores (Intel Xeon), 43 of 46 runs, loss against the base, language model and
translator. Three seeds: SwiGLU +0.005 and +0.088, RoPE -0.230 and +0.043, the untied head -0.042
for the first, the parallel block -0.133 for the second. One seed: GELU
-0.001 and -0.023, RMSNorm -0.002 and -0.015, DyT +0.144 and +0.281, the norm last +0.076 and
+0.673, ALiBi -0.191 and +0.064. Gates are behind after so few steps, as in `activations`.
"""

from matplotlib.figure import Figure

from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, chain, grid, seeds

BASE = {
    "activation": "relu", "norm": "layer_norm", "norm_place": "pre", "positions": "sinusoidal",
    "embedding_scale": True,
}  # fmt: skip
CHANGES = {
    "base": {}, "gelu": {"activation": "gelu"}, "reglu": {"activation": "reglu"},
    "geglu": {"activation": "geglu"}, "swiglu": {"activation": "swiglu"},
    "rms_norm": {"norm": "rms_norm"}, "dyt": {"norm": "dyt", "dyt_alpha": 1.0},
    "post_norm": {"norm_place": "post"}, "parallel": {"block": "parallel"},
    "rope": {"positions": "rope"}, "alibi": {"positions": "alibi"},
    "t5_positions": {"positions": "t5"},
    "multi_query": {"kv_heads": 1}, "untied": {"tie_head": False},
    "no_bias": {"attention_bias": False, "feed_forward_bias": False},
}  # fmt: skip
LABELS = {"base": "Vanilla Transformer", "gelu": "GeLU", "reglu": "ReGLU", "geglu": "GeGLU",
          "swiglu": "SwiGLU", "rms_norm": "RMS Norm"}  # fmt: skip
DECIDING = {  # of three seeds
    *(f"{task},{name}" for task in ("lm", "mt") for name in ("base", "swiglu", "rope")),
    *("lm,untied", "mt,parallel"),
}
STEPS = {"lm": 400, "mt": 300}  # at scale cpu
TASKS = {  # config, width of the feed-forward, and by how much one head of keys widens it
    "cpu": {
        "lm": ("configs/gpt_positions.py", 512, 96),
        "mt": ("configs/translate_en_fr.py", 768, 216),
    },
    "paper": {
        "lm": ("configs/gpt2_small.py", 3072, 704),
        "mt": ("configs/transformer_base.py", 2048, 672),
    },
}


def get_experiment(scale: str) -> Experiment:
    """Rows TASK,CHANGE."""
    rows = []
    for task, (config, *widths) in TASKS[scale].items():
        common = {"config": config} | ({"task.other_lengths": ()} if task == "lm" else {})
        common |= {"steps": STEPS[task]} if scale == "cpu" else {}
        rows.append(grid([Variation(task, common)], [_row(*x, *widths) for x in CHANGES.items()]))
    small = {
        "eval_every": 100_000, "save_every": 400, "keep": 1, "average": 1,
        # Both tasks start alike and are trained alike, so that only the task differs.
        "model.kernel_init": "xavier_uniform", "model.depth_scaled_init": False,
        "optimizer.name": "muon", "optimizer.learning_rate": 1e-2, "optimizer.warmup_steps": 40,
        "optimizer.schedule": "cosine", "optimizer.clip_norm": 1.0,
    }  # fmt: skip
    return Experiment(
        config="configs/gpt_positions.py",
        variations=seeds(chain(*rows), 3, DECIDING if scale == "cpu" else None),
        metric="loss",
        columns=("bits_per_byte", "bleu"),
        changes={"tensorboard": False} | (small if scale == "cpu" else {}),
        paper=papers.NARANG_TABLE1,
        paper_rows={f"{task},{name}": x for task in ("lm", "mt") for name, x in LABELS.items()},
        base={f"{task},{name}": f"{task},base" for task in ("lm", "mt") for name in CHANGES},
        plot=plot,
    )


def _row(name: str, changes: dict, width: int, saved: int) -> Variation:
    if changes.get("activation", "").endswith("glu"):
        width = round(width / 12) * 8
    sizes = {"feed_forward_width": width + saved if "kv_heads" in changes else width}
    settings = BASE | sizes | changes
    return Variation(name, {f"model.{key}": value for key, value in settings.items()})


def plot(table) -> Figure:
    """The fall of the loss by each change, in nats, on both tasks."""
    figure = Figure((6, 5), layout="constrained")
    axes = figure.subplots()
    loss = {row.name: row.mean("test/loss") for row in table.rows}
    for name in CHANGES:
        point = [loss[f"{task},base"] - loss[f"{task},{name}"] for task in ("lm", "mt")]
        axes.plot(*point, "ko")
        axes.annotate(name, point, fontsize="small")
    axes.axhline(0, lw=0.5)
    axes.axvline(0, lw=0.5)
    axes.set(xlabel="gain of the language model, nats", ylabel="gain of the translator, nats")
    return figure
