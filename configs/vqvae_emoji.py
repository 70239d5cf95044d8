"""A VQ-VAE (van den Oord 2017): emoji of 32 x 32 pixels as 64 codes, on a CPU.

    python -m transformer_lab train --config=configs/vqvae_emoji.py --workdir=runs/vqvae

The run's made.png shows, in three rows, held-out emoji, what their codes give, and the same again.
2026-11-29, one of 2 cores (AMD EPYC, shared with much other work), 4 minutes of processor time, 15
by the clock: the 191 test emoji come back with PSNR 23.03 dB and SSIM 0.799 (validation 23.06,
0.783); all 256 codes are used, with a perplexity of 183.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = ""):
    """No argument is taken."""
    known("configs/vqvae_emoji.py:", arg, ("",))
    config = default_config(model="vqvae", task="image_prediction")
    config.steps = 1000
    config.eval_every = 500
    config.save_every = 100
    config.data.source = "emoji"
    config.data.validation_share = 0.02
    config.augment.flip = 0.5
    config.batch.rows = 32
    config.model.update(
        image_size=(32, 32), patch_size=(4, 4), layers=2, width=128, heads=4, head_dim=32,
        feed_forward_width=384, codes=256, code_width=16,
    )  # fmt: skip
    config.optimizer.update(
        name="muon", learning_rate=4e-3, warmup_steps=100, schedule="linear", weight_decay=0.0,
        clip_norm=1.0,
    )  # fmt: skip
    return config
