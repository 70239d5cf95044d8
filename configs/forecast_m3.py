"""Monthly series of the M3 competition, forecast by one model for all of them.

python -m transformer_lab train --config=configs/forecast_m3.py --workdir=runs/forecast

`:wavenet` takes dilated convolutions in place of a stack over patches.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config

NETS = {"patches": "patch_forecaster", "wavenet": "wavenet"}


def get_config(arg: str = "patches"):
    """`arg` names the net."""
    known("configs/forecast_m3.py:", arg, NETS)
    config = default_config(model=NETS[arg], task="forecasting")
    config.steps = 2000
    config.eval_every = 500
    config.save_every = 500
    # The competition's own task: all but the last 18 months train, and nothing is left to validate.
    config.data.update(competition="m3", frequency="monthly", validation_origins=0)
    config.batch.rows = 256
    config.task.mu = 100.0
    config.model.update(context=120, dropout=0.0)
    if arg == "patches":
        config.model.update(width=64, heads=4, feed_forward_width=128)
    config.optimizer.update(
        learning_rate=2e-3, warmup_steps=100, schedule="cosine", weight_decay=0.01, clip_norm=1.0
    )
    return config
