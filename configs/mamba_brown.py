"""A Mamba on the Brown corpus, from scratch on a CPU: the data and the time of `gpt_brown`.

python -m transformer_lab train --config=configs/mamba_brown.py --workdir=runs/mamba

Six blocks of a selective state space and nothing else have the parameters of its four of attention
and feed-forward, 2.28 M to 2.24 M.

2026-11-29, 2 cores (AMD EPYC) shared with other work: a step of 16 rows of 128 took 4.0 seconds of
a core, one of `gpt_brown` 0.68 in the same process in turns. So 440 steps take the time of its
2,600; they were begun and not trained to the end.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = ""):
    """No argument is taken."""
    known("configs/mamba_brown.py:", arg, ("",))
    config = default_config(model="decoder", task="language_modeling")
    config.steps = 440
    config.eval_every = 220
    config.save_every = 50
    config.tokenizer.update(kind="bpe", vocab_size=4000, lossless=True)
    config.batch.update(rows=16, length=128)
    config.task.eval_stride = 32
    config.model.update(
        layers=6,
        width=192,
        layer_kinds=("mamba/none",),
        norm="rms_norm",
        positions="none",
        dropout=0.0,
        max_length=256,
    )
    config.model.mixer.update(inner_width=384, state=16, step_rank=12)
    config.optimizer.update(
        name="muon",
        learning_rate=1e-2,
        warmup_steps=40,
        schedule="linear",
        weight_decay=0.3,
        clip_norm=1.0,
    )
    config.decode.update(temperature=0.8, max_new_tokens=60)
    return config
