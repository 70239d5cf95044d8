"""A diffusion transformer (DiT, Peebles 2023) that draws emoji at 32 pixels, on a CPU.

python -m transformer_lab train --config=configs/dit_emoji.py --workdir=runs/dit
python -m transformer_lab generate --workdir=runs/dit --prompt="food & drink" --output=food.png
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
