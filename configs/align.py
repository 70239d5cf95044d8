"""Alignment: supervised fine-tuning, reward models, DPO, IPO, GRPO and PPO.

    python -m transformer_lab train --config=configs/align.py:sft --workdir=runs/brackets
    python -m transformer_lab train --config=configs/align.py:grpo --workdir=runs/grpo \
        --init_from=runs/brackets
    python -m transformer_lab train --config=configs/align.py:dpo --workdir=runs/dpo \
        --init_from=runs/lm

`:sft` teaches a small model of characters to close brackets; `:grpo` and `:ppo` go on from it by
the reward of brackets that are closed. `:dpo`, `:ipo` and `:reward` take pairs of right and wrong
endings and adapt any language model by LoRA. Other data: --config.data.source=files with
--config.data.path=FILE.jsonl (docs/alignment.md, which has the measured figures).
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config

TASKS = {
    "sft": "sft", "reward": "reward", "dpo": "preferences", "ipo": "preferences",
    "grpo": "grpo", "ppo": "ppo",
}  # fmt: skip


def get_config(arg: str = "sft"):
    """`arg` is the objective."""
    known("configs/align.py:", arg, TASKS)
    config = default_config(model="decoder", task=TASKS[arg])
    config.optimizer.update(schedule="linear", warmup_steps=20, clip_norm=1.0)
    config.keep = 1
    config.model.dropout = 0.0
    if arg in ("dpo", "ipo", "reward"):
        config.update(steps=150, eval_every=50, save_every=50, model_from_init=True)
        config.adapt.update(method="lora", rank=8, alpha=16.0)
        config.batch.update(rows=8, length=128)
        config.data.update(max_examples=2000, validation_share=0.02, test_share=0.02)
        config.optimizer.learning_rate = 2e-4
        if arg == "reward":
            config.adapt.train = "score_head"
        else:
            config.task.update(loss=arg, beta=0.1)
        return config
    config.tokenizer.kind = "char"
    config.data.source = "brackets"
    config.decode.update(temperature=1.0, max_new_tokens=14)
    if arg == "sft":
        config.update(steps=150, eval_every=150, save_every=150)
        config.batch.update(rows=16, length=64)
        config.model.update(
            layers=2,
            width=128,
            heads=4,
            head_dim=32,
            feed_forward_width=512,
            positions="rope",
            norm="rms_norm",
            max_length=64,
        )
        config.optimizer.learning_rate = 2e-3
        return config
    config.update(steps=100, eval_every=50, save_every=50, model_from_init=True)
    config.task.update(reward="brackets", group=8 if arg == "grpo" else 1, passes=2)
    config.batch.update(rows=128, length=28)
    config.optimizer.learning_rate = 3e-4
    return config
