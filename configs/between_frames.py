"""The frame between two others, by kernels that a transformer over patches gives each pixel.

python -m transformer_lab train --config=configs/between_frames.py --workdir=runs/between
python -m transformer_lab evaluate --workdir=runs/between --config.data.source=video_tiles \
    --config.data.validation_share=0 --config.data.test_share=0.9 --config.data.held_clips=10

Trained on parts of photographs that pan, with stamps that move over them; the second command tests
it on consecutive frames of four real videos, by video. `.._given` are the figures of the mean of
both neighbours, with which the model begins.

2026-11-30, one of 2 cores (AMD EPYC, shared with much other work), 800 steps, 6 minutes of
processor time, 24 by the clock: PSNR of the test scenes 35.36 dB and SSIM 0.965, the mean 29.75 dB
and 0.871. On the real videos 34.61, 23.09, 32.14 and 30.96 dB, the mean 33.38, 23.06, 31.35 and
29.52 dB (see docs/video.md).
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = ""):
    """No argument is taken."""
    known("configs/between_frames.py:", arg, ("",))
    config = default_config(model="vqvae", task="image_prediction")
    config.steps = 800
    config.eval_every = 400
    config.save_every = 100
    config.data.update(source="moving_scenes", frames=3, clips=100_000, held_clips=256)
    config.augment.flip = 0.5
    config.batch.rows = 32
    config.task.between = 9
    config.model.update(
        image_size=(48, 48), patch_size=(8, 8), layers=2, width=192, heads=4, head_dim=48,
        feed_forward_width=384, codes=0,
    )  # fmt: skip
    config.optimizer.update(
        name="muon", learning_rate=3e-3, warmup_steps=50, schedule="linear", weight_decay=0.0,
        clip_norm=1.0,
    )  # fmt: skip
    return config
