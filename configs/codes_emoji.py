"""Emoji by the codes of a VQ-VAE, on a CPU: in order as in DALL-E, or `:parallel` as in MaskGIT.

python -m transformer_lab train --config=configs/codes_emoji.py --workdir=runs/codes \
    --init_from=runs/vqvae --init_into=image

--init_from is the run of configs/vqvae_emoji.py. `generate` draws: see docs/pictures.md.
2026-11-30, one of 2 cores (AMD EPYC, shared with much other work), --config.steps=500, 2.5 minutes
of processor time each: in order 0.459 of the 191 test emoji's codes are the likeliest ones, at
2.34 nats a code; `:parallel` has 0.254 and 3.63 nats of hidden codes. `:order+text` to its end, 6
minutes of one core: 0.440 and 2.94 nats, from names. See docs/pictures.md.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config

KINDS = ("order", "parallel")


def get_config(arg: str = "order"):
    """`arg` is order or parallel, with +text for names in place of categories."""
    way, _, text = arg.partition("+")
    known("configs/codes_emoji.py:", way, KINDS)
    config = default_config(model="picture_codes", task="picture_codes")
    config.steps = 2000
    config.eval_every = 500
    config.save_every = 100
    config.data.source = "emoji"
    config.data.validation_share = 0.02
    config.augment.flip = 0.5
    config.batch.rows = 32
    config.tokenizer.kind = "word"
    config.task.condition = "text" if text else "label"
    config.adapt.update(method="head", train="^text/")
    config.model.image.update(
        image_size=(32, 32), patch_size=(4, 4), layers=2, width=128, heads=4, head_dim=32,
        feed_forward_width=384, codes=256, code_width=16,
    )  # fmt: skip
    config.model.text.update(
        layers=4, width=128, heads=4, head_dim=32, feed_forward_width=384, max_length=72,
        mask="causal" if way == "order" else "prefix", dropout=0.1,
    )  # fmt: skip
    config.optimizer.update(
        name="muon", learning_rate=4e-3, warmup_steps=100, schedule="linear", weight_decay=0.1,
        clip_norm=1.0,
    )  # fmt: skip
    return config
