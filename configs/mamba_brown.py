"""A Mamba on the Brown corpus, from scratch on a CPU: the data and the time of `gpt_brown`.

python -m transformer_lab train --config=configs/mamba_brown.py --workdir=runs/mamba

Six blocks of a selective state space and nothing else have about the parameters of four of
attention and feed-forward (a block's matrices are 6 width^2).
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = ""):
    """No argument is taken."""
    known("configs/mamba_brown.py:", arg, ("",))
    config = default_config(model="decoder", task="language_modeling")
    config.steps = 2600
    config.eval_every = 1300
    config.save_every = 250
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
        warmup_steps=100,
        schedule="linear",
        weight_decay=0.3,
        clip_norm=1.0,
    )
    config.decode.update(temperature=0.8, max_new_tokens=60)
    return config
