"""Which of eight motions a stamp makes over a photograph, by a small Video Vision Transformer.

python -m transformer_lab train --config=configs/video_stamps.py --workdir=runs/video

Clips of 8 frames of 32 x 32 pixels, of stamps and photographs that the training split lacks.
`:joint` attends to all tubelets at once; `:bag` takes the mean of the frames' vectors, which tells
left and right from up and down but not left from right; `:frame` sees the first frame alone.

2026-11-29, one of 2 cores (AMD EPYC, shared with much other work), 450 steps, 6 minutes: test
accuracy 0.814 (validation 0.698) on 500 clips each, of 36 stamps over one photograph; chance 0.125.
`:frame` has 0.158 after 200 steps (validation 0.142).
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config

KINDS = ("factorised", "joint", "bag", "frame")


def get_config(arg: str = "factorised"):
    """`arg` is factorised, joint, bag or frame."""
    known("configs/video_stamps.py:", arg, KINDS)
    config = default_config(model="video", task="image_classification")
    config.update(steps=450, eval_every=150, save_every=50)
    config.data.update(source="moving_stamps", size=(32, 32), frames=1 if arg == "frame" else 8)
    config.data.update(clips=20_000, held_clips=500)
    config.batch.rows = 64
    config.task.update(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    config.model.update(
        patch_size=(8, 8),
        tubelet=4 if arg in ("factorised", "joint") else 1,
        time="joint" if arg == "joint" else "factorised",
        temporal_layers=2 if arg == "factorised" else 0,
        layers=2,
        width=64,
        heads=2,
        head_dim=32,
        feed_forward_width=128,
        pooling="mean",
        activation="gelu_tanh",
    )
    config.optimizer.update(
        name="muon",
        learning_rate=3e-3,
        warmup_steps=50,
        schedule="linear",
        weight_decay=0.1,
        clip_norm=1.0,
    )
    return config
