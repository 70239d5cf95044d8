"""What does a model remember, and how far? Associative recall, copying, induction, ListOps, pixels.

python -m transformer_lab train --config=configs/long_range.py:mamba+mqar --workdir=runs/mamba

`:MODEL+SOURCE`: a model of `MODELS` with as many parameters as attention has at width 64 (within 5
%, its width is found by counting), on a source of `SOURCES`. `:MODEL+SOURCE+time` trains as long as
attention does, not as many steps. The last line has the accuracy at lengths beyond that of
training; `experiments/long_range.py` trains all models and has what they reached.
"""

from dataclasses import replace

from ml_collections import ConfigDict

from transformer_lab.data.sequences import vocabulary_of
from transformer_lab.errors import known
from transformer_lab.models import costs, parameter_shapes
from transformer_lab.training.config import default_config, resolve

LAYERS = {  # of each model, repeated; an LSTM is another family
    "attention": ("attention",),
    "linear": ("linear",),
    "gated": ("gated",),
    "retention": ("retention",),
    "s4d": ("s4d",),
    "mamba": ("mamba:none",),
    "mamba2": ("mamba2:none",),
    "rwkv": ("rwkv:shifted",),
    "hybrid": ("mamba:none", "attention"),
}
MODELS = (*LAYERS, "lstm")
STATES = {"s4d": 64, "mamba2": 32}  # others: 16
WIDTH = 32  # of attention
# A step's time over attention's, each alone on one core with 64 sequences of 64 tokens
COST = dict.fromkeys(MODELS, 1.0)
SOURCES = {  # the data, the lengths beyond that of training, and attention's steps
    "mqar": ({"length": 64, "vocabulary": 256}, (128, 256), 1000),
    "induction_heads": ({"length": 64}, (128, 256, 512), 1000),
    "selective_copying": ({"length": 64, "remembered": 8}, (128, 256), 1000),
    "listops": ({"length": 128}, (256,), 1000),
    "pixels": ({"length": 196, "vocabulary": 16}, (), 1000),
}


def get_config(arg: str = "attention+mqar"):
    """`arg` is the model and the source after a plus sign; a third part, time: equal time."""
    model, source, equal = (arg.split("+") + ["mqar", "steps"][arg.count("+") :])[:3]
    known("configs/long_range.py:", model, MODELS)
    known("configs/long_range.py:MODEL+", source, SOURCES)
    known("configs/long_range.py:MODEL+SOURCE+", equal, ("steps", "time"))
    aim = costs.count(parameter_shapes("decoder", sized("attention", source, WIDTH)[1]))
    width = costs.width_near(kind_of(model), lambda width: sized(model, source, width)[1], aim)
    config, _ = sized(model, source, width)
    steps = SOURCES[source][2]
    config.steps = round(steps / COST[model]) if equal == "time" else steps
    config.update(eval_every=100_000, save_every=1000, keep=1)
    config.optimizer.update(
        learning_rate=3e-3, warmup_steps=50, schedule="cosine", clip_norm=1.0, weight_decay=0.1
    )
    return config


def kind_of(model: str) -> str:
    """The family."""
    return "recurrent" if model == "lstm" else "decoder"


def sized(model: str, source: str, width: int) -> tuple[ConfigDict, object]:
    """The config of a width, and the settings of its model with the vocabulary of the source."""
    config = default_config(model=kind_of(model), task="sequence_targets")
    data, others, _ = SOURCES[source]
    config.data.update(source=source, **data)
    config.task.other_lengths = others
    config.model.update(layers=2, width=width, max_length=max(data["length"], *others, 1))
    if model == "lstm":
        config.model.update(cell="lstm", embedding_width=width, tie_head=True, dropout=0.0)
    else:
        config.model.update(
            layer_kinds=LAYERS[model], heads=2, head_dim=width // 2, feed_forward_width=4 * width,
            positions="rope" if "attention" in LAYERS[model] else "none", norm="rms_norm",
            attention_bias=False, feed_forward_bias=False, dropout=0.0,
        )  # fmt: skip
        config.model.mixer.update(
            inner_width=width if model == "rwkv" else 2 * width, state=STATES.get(model, 16),
            step_rank=-(-width // 16), state_heads=4,
        )  # fmt: skip
    settings = resolve(config)
    size = vocabulary_of(settings.sections["data"])
    return config, replace(settings.model, vocab_size=size)
