"""A mixture of experts on the Brown corpus, from scratch on a CPU: `gpt_brown`, wider at its cost.

python -m transformer_lab train --config=configs/moe_brown.py --workdir=runs/moe

Two of eight experts work for a token, each of half the width of the dense feed-forward: a token
takes the products that it takes there, and the feed-forwards have four times the parameters (4.90 M
in all to 2.24 M).

2026-11-29, 2 cores (AMD EPYC) shared with other work: a step of 16 rows of 128 took 2.0 seconds of
a core, one of `gpt_brown` 0.68 in the same process in turns. So 880 steps take the time of its
2,600; they were begun and not trained to the end.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = ""):
    """No argument is taken."""
    known("configs/moe_brown.py:", arg, ("",))
    config = default_config(model="decoder", task="language_modeling")
    config.steps = 880
    config.eval_every = 440
    config.save_every = 100
    config.tokenizer.update(kind="bpe", vocab_size=4000, lossless=True)
    config.batch.update(rows=16, length=128)
    config.task.eval_stride = 32
    config.model.update(
        layers=4,
        width=192,
        heads=3,
        head_dim=64,
        feed_forward="experts",
        activation="geglu_tanh",
        norm="rms_norm",
        positions="rope",
        attention_bias=False,
        feed_forward_bias=False,
        dropout=0.0,
        max_length=256,
    )
    config.model.experts.update(count=8, top_k=2, width=192)
    config.optimizer.update(
        name="muon",
        learning_rate=1e-2,
        warmup_steps=100,
        schedule="linear",
        weight_decay=0.3,
        clip_norm=1.0,
    )
    config.decode.update(temperature=0.8, max_new_tokens=60)
    return config
