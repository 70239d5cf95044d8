"""A diffusion transformer (DiT, Peebles 2023) that draws emoji at 32 pixels, on a CPU.

python -m transformer_lab train --config=configs/dit_emoji.py --workdir=runs/dit
python -m transformer_lab generate --workdir=runs/dit --prompt="food & drink" --output=food.png

By flow matching, of ten categories; `:ddpm` predicts the noise, `:text` reads names in place of
categories, `:stamps` draws Tux Paint's stamps by category. At its end the run draws samples.png, a
row for each category.

2026-11-29, one of 2 cores (AMD EPYC, shared with much other work, a fifth of its time), 2,000 steps
of 48 in 12 minutes of processor time and an hour by the clock: mean squared error of the velocity
0.154 on the validation split and 0.175 on 191 test emoji (0.217, 0.173, 0.159 on validation after
500, 1,000, 1,500 steps). Faces, people, flags and signs are seen to be such; animals, food and
objects are blots of the right colours. The variants were compiled and tested, but not trained.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config

KINDS = ("flow", "ddpm", "text", "stamps")


def get_config(arg: str = "flow"):
    """`arg` is flow, ddpm, text or stamps."""
    known("configs/dit_emoji.py:", arg, KINDS)
    config = default_config(model="dit", task="diffusion")
    config.steps = 2000
    config.eval_every = 500
    config.save_every = 250
    config.ema_decay = 0.998
    config.data.source = "stamp_categories" if arg == "stamps" else "emoji"
    config.data.validation_share = 0.02
    config.augment.flip = 0.5
    config.batch.rows = 48
    config.tokenizer.kind = "word"
    config.task.process = "ddpm" if arg == "ddpm" else "flow"
    config.task.condition = "text" if arg == "text" else "label"
    config.model.update(
        image_size=(32, 32), patch_size=(4, 4), layers=5, width=128, heads=4, head_dim=32,
        feed_forward_width=384, max_length=16,
    )  # fmt: skip
    config.optimizer.update(
        name="muon", learning_rate=4e-3, warmup_steps=100, schedule="linear", weight_decay=0.0,
        clip_norm=1.0,
    )  # fmt: skip
    return config
