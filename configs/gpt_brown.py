"""A GPT on the Brown corpus, from scratch on a CPU.

python -m transformer_lab.train --config=configs/gpt_brown.py --workdir=runs/gpt
"""

from transformer_lab.training.config import default_config


def get_config(arg: str = ""):
    """No argument is taken."""
    config = default_config(model="decoder", task="language_modeling")
    config.steps = 1000
    config.eval_every = 250
    config.save_every = 250
    config.tokenizer.update(kind="bpe", vocab_size=2000, lossless=True)
    config.batch.update(rows=32, length=128)
    config.model.update(
        layers=4,
        width=256,
        heads=4,
        head_dim=64,
        feed_forward_width=512,
        activation="geglu_tanh",
        norm="rms_norm",
        positions="rope",
        attention_bias=False,
        feed_forward_bias=False,
        dropout=0.1,
        max_length=256,
    )
    config.optimizer.update(
        learning_rate=3e-3, warmup_steps=100, schedule="cosine", weight_decay=0.1, clip_norm=1.0
    )
    config.decode.update(temperature=0.8, max_new_tokens=60)
    return config
