"""Monthly series of the M3 competition, forecast by one model for all of them.

python -m transformer_lab train --config=configs/forecast_m3.py --workdir=runs/forecast
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = "patches"):
    """`arg` names the net."""
    known("configs/forecast_m3.py:", arg, ("patches",))
    config = default_config(model="patch_forecaster", task="forecasting")
    config.steps = 2000
    config.eval_every = 500
    config.save_every = 500
    config.data.update(source="m3", frequency="monthly")
    config.batch.rows = 256
    config.task.mu = 100.0
    config.model.update(dropout=0.1)
    config.optimizer.update(
        learning_rate=2e-3, warmup_steps=100, schedule="cosine", weight_decay=0.01, clip_norm=1.0
    )
    return config
