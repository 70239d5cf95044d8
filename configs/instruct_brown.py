"""Instruction tuning of a small GPT: five tasks in words, and nothing but their answers is taught.

    python -m transformer_lab train --config=configs/instruct_brown.py --workdir=runs/instruct \
        --init_from=runs/gpt

`--init_from` is a run of configs/gpt_brown.py. The tasks are those of
`transformer_lab/data/sources/templates.py`; each is scored apart (`task.kinds`).

2026-11-30, one core of an AMD EPYC shared with other work, 9 minutes (1.2 steps/s), from a GPT that
was trained for 400 steps (1.991 bits per byte): 0.446 of 500 held-out prompts are answered word for
word, 0.000 before. Brackets closed 0.794, class of a word 0.636 (a constant answer 0.386), words
backwards 0.425, last word 0.330, sums 0.091. The same from random weights: 0.464, so that this
much pretraining does not pay here; docs/alignment.md.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = ""):
    """No argument is taken."""
    known("configs/instruct_brown.py:", arg, ("",))
    config = default_config(model="decoder", task="sft")
    config.update(steps=550, eval_every=550, save_every=100, keep=1, model_from_init=True)
    config.data.update(source="templates", validation_share=0.04, test_share=0.08)
    config.task.update(score_examples=500, kinds="^[^:]+", samples=10)
    config.batch.update(rows=8, length=128)
    config.model.dropout = 0.0
    config.decode.update(temperature=0.0, max_new_tokens=24)
    config.optimizer.update(
        name="muon", learning_rate=6e-3, warmup_steps=40, schedule="linear", clip_norm=1.0
    )
    return config
