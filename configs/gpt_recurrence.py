"""The GPT on the Brown corpus with the recurrence over segments of Transformer-XL (Dai 2019).

python -m transformer_lab train --config=configs/gpt_recurrence.py --workdir=runs/xl

Rows of 256 tokens are read in segments of 64, each of which also sees the 64 tokens before it,
whose states get no gradient. `:0` has no memory: each segment is read by itself. After training any
memory may be tried, `evaluate --workdir=runs/xl --config.model.memory=192`.

2026-11-29: not trained yet; its parts are tested against attention with a mask and cached segments.
"""

from pathlib import Path

from transformer_lab.errors import known
from transformer_lab.sweeps.experiment import load_module

MEMORIES = ("64", "0")


def get_config(arg: str = "64"):
    """`arg` is the number of tokens that a segment remembers, 64 or 0."""
    known("configs/gpt_recurrence.py:", arg, MEMORIES)
    config = load_module(str(Path(__file__).with_name("gpt_brown.py"))).get_config()
    config.update(steps=300, eval_every=300, save_every=50)
    config.batch.update(rows=8, length=256)
    config.task.update(eval_stride=128, samples=0)
    config.model.update(positions="transformer_xl", segment=64, memory=int(arg), max_length=512)
    config.optimizer.warmup_steps = 30
    return config
