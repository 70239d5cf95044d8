"""English to French on the help pages of LibreOffice: 26,600 full sentences.

    python -m transformer_lab train --config=configs/translate_en_fr_help.py --workdir=runs/help

2026-11-28, 2 cores (AMD EPYC, AVX-512) shared with other work, stopped and resumed twice: 37
minutes in all; BLEU 38.57 and chrF 62.67 greedy, BLEU 40.65 and chrF 64.20 with beam 4 (alpha
0.6), on 500 held-out sentences of other pages; mean of the last 5 checkpoints.

English to German: `--config=configs/translate_en_fr_help.py:en-de`.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = "en-fr"):
    """`arg` is the pair of languages: en-fr or en-de."""
    known("configs/translate_en_fr_help.py:", arg, ("en-fr", "en-de"))
    config = default_config(model="encoder_decoder", task="translation")
    config.steps = 2000
    config.eval_every = 500
    config.save_every = 100
    config.average = 5
    config.data.update(source="libreoffice_help", languages=arg)
    config.tokenizer.vocab_size = 6000
    config.batch.update(tokens_per_batch=4096, buckets=5, max_length=80)
    config.model.update(
        layers=2,
        width=256,
        heads=4,
        head_dim=64,
        feed_forward_width=1024,
        norm_place="pre",
        max_length=128,
    )
    config.optimizer.update(learning_rate=2e-3, warmup_steps=400, schedule="cosine")
    return config
