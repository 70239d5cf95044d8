"""Dependency trees of Turkish sentences from scratch on a CPU: biaffine scores on an encoder.

python -m transformer_lab train --config=configs/parse_turkish.py --workdir=runs/parse
python -m transformer_lab predict --workdir=runs/parse "Burda da kiloyla mı ?"

2026-11-29, one of 2 cores (AMD EPYC, shared with other work): 800 steps in 2 minutes of processor
time; UAS 0.702 and LAS 0.583 on 486 test sentences of held-out pages (next word and most frequent
relation: 0.483 and 0.179), validation 0.698 and 0.577. docs/parsing.md has more.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = ""):
    """No argument is taken."""
    known("configs/parse_turkish.py:", arg, ("",))
    config = default_config(model="encoder", task="dependency_parsing")
    config.update(steps=800, log_every=50, eval_every=800, save_every=100, keep=2)
    config.data.source = "turkish_treebanks"
    config.tokenizer.update(kind="bpe", vocab_size=3000)
    config.batch.update(tokens_per_batch=1024, buckets=2, max_length=96)
    config.model.update(
        layers=3,
        width=128,
        heads=4,
        head_dim=32,
        feed_forward_width=256,
        types=0,
        pooler=False,
        norm_place="pre",
        max_length=256,
        dropout=0.2,
        attention_dropout=0.1,
        head_dropout=0.33,
        arc_width=128,
        label_width=64,
    )
    config.optimizer.update(
        learning_rate=3e-3, warmup_steps=100, schedule="cosine", weight_decay=0.05, clip_norm=1.0
    )
    return config
