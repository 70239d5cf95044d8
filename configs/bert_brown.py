"""A small BERT on the Brown corpus, from scratch on a CPU: masked words and next sentences.

    python -m transformer_lab.train --config=configs/bert_brown.py --workdir=runs/bert

The positions turn (RoPE): from scratch, within 30 minutes, with learned ones the masked tokens stay
near the level of word frequencies. `:original` has the published block (Devlin 2019);
`:roberta` leaves the next sentences out (Liu 2019).
"""

from transformer_lab.errors import LabError, nearest
from transformer_lab.training.config import default_config

VARIANTS = ("", "original", "roberta")


def get_config(arg: str = ""):
    """`arg` is empty or one of the variants."""
    if arg not in VARIANTS:
        raise LabError(f'configs/bert_brown.py:"{arg}" is unknown{nearest(arg, VARIANTS)}')
    config = default_config(model="encoder", task="masked_language_modeling")
    config.steps = 5000
    config.eval_every = 1000
    config.save_every = 500
    config.tokenizer.update(kind="wordpiece", vocab_size=4000)
    config.batch.update(rows=32, length=64)
    config.task.next_sentence = arg != "roberta"
    config.model.update(
        layers=4,
        width=192,
        heads=6,
        head_dim=32,
        feed_forward_width=768,
        dropout=0.0,
        attention_dropout=0.0,
        max_length=128,
        positions="learned" if arg == "original" else "rope",
    )
    config.optimizer.update(
        name="muon",
        learning_rate=5e-3,
        warmup_steps=200,
        schedule="linear",
        weight_decay=0.01,
        clip_norm=1.0,
    )
    return config
