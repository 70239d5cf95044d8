"""Finds stamps on photographs, in six classes: a small DETR (Carion 2020).

python -m transformer_lab train --config=configs/detect_stamps.py --workdir=runs/detect

`:cells` is the plain detector beside it, from which the net may start: `--init_from=runs/cells
--init_pattern=backbone/`. About 30 scenes a second on one CPU core.

2026-11-29, one of 2 cores (AMD EPYC, shared with other work), 300 test scenes: `:cells` with
--config.steps=1400 AP50 0.348 (boxes of any class 0.722); DETR from its net with
--config.steps=1600 AP50 0.355 (0.683). docs/detection.md has more.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config

KINDS = ("detr", "cells")
NET = {
    "block": "basic",
    "stages": (1, 1, 1),
    "width": 24,
    "stem_width": 16,
    "head": "none",
    "stem": "large",
}


def get_config(arg: str = "detr"):
    """`arg` is detr, or cells: the plain net whose cells find an object each."""
    known("configs/detect_stamps.py:", arg, KINDS)
    config = default_config(model=arg, task="detection")
    config.update(steps=3000, eval_every=500, save_every=250, best="ap50")
    config.batch.rows = 64
    config.model.backbone.update(**NET)
    if arg == "detr":
        config.model.update(
            layers=2,
            decoder_layers=3,
            width=96,
            heads=4,
            head_dim=24,
            decoder_heads=4,
            feed_forward_width=192,
            decoder_feed_forward_width=192,
            queries=12,
            dropout=0.0,
            frozen_norms=False,
        )
    else:
        config.model.width = 96
        config.task.duplicate_overlap = 0.5
    config.optimizer.update(
        name="muon",
        learning_rate=2e-3 if arg == "detr" else 1e-2,
        warmup_steps=100,
        schedule="linear",
        weight_decay=0.05,
        clip_norm=1.0,
    )
    return config
