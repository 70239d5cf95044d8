"""What does a model remember, and how far? Associative recall, copying, induction, ListOps, pixels.

python -m transformer_lab train --config=configs/long_range.py:mamba+mqar --workdir=runs/mamba

`:MODEL+SOURCE`: a model of `MODELS` on a source of `SOURCES`. All have the parameters of attention
at width 32, within 5 %: the width of the feed-forward is found by counting, or the model's own
where it has none. `:MODEL+SOURCE+time` trains as long as attention does, not as many steps. The
last line has the accuracy at lengths beyond that of training; `experiments/long_range.py` trains
all models and has what they reached.
"""

from dataclasses import replace

from ml_collections import ConfigDict

from transformer_lab.data.sequences import vocabulary_of
from transformer_lab.errors import known
from transformer_lab.models import costs
from transformer_lab.training.config import default_config, resolve

LAYERS = {  # of each model, repeated; an LSTM is another family
    "attention": ("attention",),
    "lstm": (),
    "linear": ("linear",),
    "retention": ("retention",),
    "rwkv": ("rwkv/shifted",),
    "gated": ("gated",),
    "mamba2": ("mamba2/none",),
    "mamba": ("mamba/none",),
    "hybrid": ("mamba/none", "attention"),
    "s4d": ("s4d",),
}
MODELS = tuple(LAYERS)
WIDTH = 32  # of attention
# A step's processor time over attention's (5 ms), 16 sequences of 32 tokens on one core
COST = {
    "attention": 1.0, "lstm": 0.6, "linear": 1.0, "retention": 1.5, "rwkv": 1.7, "gated": 2.4,
    "mamba2": 1.6, "mamba": 5.6, "hybrid": 3.2, "s4d": 2.0,
}  # fmt: skip
LONGER = {  # the same where sequences are longer: attention's step takes 7.5 and 55 ms
    "listops": {"linear": 1.0, "s4d": 1.7, "mamba": 2.7, "rwkv": 1.3, "lstm": 0.6, "hybrid": 1.6},
    "pixels": {"linear": 0.5, "s4d": 1.2, "mamba": 1.3, "rwkv": 0.9, "lstm": 0.25, "hybrid": 1.15},
}
SOURCES = {  # the data, the lengths beyond that of training, and attention's steps
    "mqar": ({"length": 32, "vocabulary": 32}, (64, 128), 1000),
    "induction_heads": ({"length": 32}, (64, 128, 256), 1000),
    "selective_copying": ({"length": 32, "remembered": 4}, (64, 128), 1000),
    "listops": ({"length": 64, "train_size": 96_000}, (128,), 8000),
    "pixels": ({"length": 196, "vocabulary": 16, "train_size": 0}, (), 1100),
}


def get_config(arg: str = "attention+mqar"):
    """`arg` is the model and the source after a plus sign; a third part, time: equal time."""
    model, source, equal = (arg.split("+") + ["mqar", "steps"][arg.count("+") :])[:3]
    known("configs/long_range.py:", model, MODELS)
    known("configs/long_range.py:MODEL+", source, SOURCES)
    known("configs/long_range.py:MODEL+SOURCE+", equal, ("steps", "time"))
    aim = costs.parameters("decoder", sized("attention", source, 4 * WIDTH)[1])
    of_size = lambda size: sized(model, source, size)[1]  # noqa: E731
    config, _ = sized(model, source, costs.width_near(kind_of(model), of_size, aim))
    steps = SOURCES[source][2]
    cost = (COST | LONGER.get(source, {}))[model] if equal == "time" else 1.0
    config.steps = round(steps / cost)
    config.update(eval_every=100_000, save_every=1000, keep=1)
    config.batch.rows = 16
    config.optimizer.update(
        name="muon", learning_rate=4e-3, warmup_steps=50, schedule="cosine", clip_norm=1.0
    )
    return config


def kind_of(model: str) -> str:
    """The family."""
    return "recurrent" if model == "lstm" else "decoder"


def sized(model: str, source: str, size: int) -> tuple[ConfigDict, object]:
    """The config, and the settings of its model with the vocabulary of the source. `size` is the
    width of the feed-forward; of a model that has none, its own."""
    width = size if model in ("lstm", "mamba", "mamba2") else WIDTH
    config = default_config(model=kind_of(model), task="sequence_targets")
    data, others, _ = SOURCES[source]
    config.data.update(source=source, train_size=20_000)
    config.data.update(data)
    config.task.other_lengths = others
    config.model.update(layers=2, width=width, max_length=max(data["length"], *others, 1))
    if model == "lstm":
        config.model.update(cell="lstm", embedding_width=width, tie_head=True, dropout=0.0)
    else:
        config.model.update(
            layer_kinds=LAYERS[model], heads=2, head_dim=width // 2, feed_forward_width=size,
            positions="rope" if "attention" in LAYERS[model] else "none", norm="rms_norm",
            attention_bias=False, feed_forward_bias=False, dropout=0.0,
        )  # fmt: skip
        config.model.mixer.update(
            inner_width=width if model == "rwkv" else 2 * width, state=8,
            step_rank=-(-width // 16), state_heads=4,
        )  # fmt: skip
    settings = resolve(config)
    size = vocabulary_of(settings.sections["data"])
    return config, replace(settings.model, vocab_size=size)
