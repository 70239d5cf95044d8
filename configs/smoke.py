"""A tiny translator that reverses generated sentences: tries the machinery, downloads nothing.

python -m transformer_lab train --config=configs/smoke.py --workdir=runs/smoke
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = ""):
    """No argument is taken."""
    known("configs/smoke.py:", arg, ("",))
    config = default_config(model="encoder_decoder", task="translation")
    config.steps = 400
    config.log_every = 10
    config.eval_every = 200
    config.save_every = 100
    config.data.source = "reverse"
    config.data.validation_size = 100
    config.data.test_size = 100
    config.tokenizer.kind = "word"
    config.batch.tokens_per_batch = 1024
    config.batch.buckets = 1
    config.model.update(
        layers=1,
        width=64,
        heads=4,
        head_dim=16,
        feed_forward_width=128,
        dropout=0.0,
        norm_place="pre",
        max_length=16,
    )
    config.optimizer.update(learning_rate=1e-2, warmup_steps=40, schedule="cosine")
    config.task.score_examples = 50
    return config
