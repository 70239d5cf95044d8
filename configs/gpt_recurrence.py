"""The GPT on the Brown corpus with the recurrence over segments of Transformer-XL (Dai 2019).

python -m transformer_lab train --config=configs/gpt_recurrence.py --workdir=runs/xl

Rows of 512 tokens are read in segments of 64, each of which also sees the 64 tokens before it,
whose states get no gradient. `:0` has no memory: each segment is read by itself. `:recall` adds the
kNN attention of the Memorizing Transformer (Wu 2022): in the third layer each query also attends to
the 32 nearest of the 384 tokens before those. After training any memory may be tried,
`evaluate --workdir=runs/xl --config.model.memory=192` or `--config.model.recall_length=128`.

2026-11-29, one of 2 cores (AMD EPYC, shared with much other work), 200 steps, 3 minutes of
processor time each: `:recall` has 2.2263 bits per byte of 6,706 test tokens, and 2.2264 when it
recalls nothing; `:64` with its positions (t5) 2.2314, without a memory 2.2502. 2026-11-30, the
default to its end, 4 minutes of one core: 2.0190 on the whole test split, and 2.0449, 2.0234 and
2.0197 with a memory of 0, 16 and 192 tokens in place of 64.
"""

from pathlib import Path

from transformer_lab.errors import known
from transformer_lab.sweeps.experiment import load_module

MEMORIES = ("64", "0", "recall")


def get_config(arg: str = "64"):
    """`arg` is the number of tokens that a segment remembers, 64 or 0; recall: 64, and others by
    their keys."""
    known("configs/gpt_recurrence.py:", arg, MEMORIES)
    config = load_module(str(Path(__file__).with_name("gpt_brown.py"))).get_config()
    config.update(steps=300, eval_every=300, save_every=50)
    config.batch.update(rows=4, length=512)
    config.task.update(eval_stride=128, samples=0)
    config.model.update(positions="transformer_xl", segment=64, max_length=512)
    config.model.memory = 64 if arg == "recall" else int(arg)
    if arg == "recall":
        config.model.update(positions="t5", recall=32, recall_length=384, recall_layer=2)
    config.optimizer.warmup_steps = 30
    return config
