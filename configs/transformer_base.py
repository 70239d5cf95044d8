"""Transformer (base) of Vaswani 2017 on WMT14, English to German or French.

    python -m transformer_lab train --config=configs/transformer_base.py:en-de --workdir=runs/base

Needs the data prepared by tensorflow-datasets (docs/data.md) and accelerators; the paper used
8 P100 GPUs and states BLEU 27.3 en-de and 38.1 en-fr (table 2). Not run here so far.
"""

from dataclasses import replace

from transformer_lab.errors import known
from transformer_lab.models.presets import ENCODER_DECODERS
from transformer_lab.training.config import default_config, fields_of

TFDS = {"en-de": "wmt14_translate/de-en", "en-fr": "wmt14_translate/fr-en"}


def get_config(arg: str = "en-de"):
    """`arg` is the pair of languages: en-de or en-fr."""
    known("configs/transformer_base.py:", arg, TFDS)
    preset = "transformer_base" + ("" if arg == "en-de" else "_en_fr")
    config = default_config(model="encoder_decoder", task="translation")
    config.steps = 100_000
    config.log_every = 100
    config.eval_every = 5000
    config.save_every = 1500
    config.keep = config.average = 5
    config.data.update(
        source="tfds", languages=arg, tfds_name=TFDS[arg], validation_size=3000, test_size=3003
    )
    # About 25,000 source and 25,000 target tokens (section 5.1).
    config.batch.update(tokens_per_batch=50_000, max_length=256, buckets=8, rows_multiple=32)
    size = ENCODER_DECODERS[preset].config
    config.tokenizer.vocab_size = size.vocab_size
    config.model.update(fields_of(replace(size, vocab_size=None)))  # the tokenizer's real size
    warmup = 4000
    config.optimizer.update(
        learning_rate=(config.model.width * warmup) ** -0.5,  # equation 3
        warmup_steps=warmup,
        schedule="inverse_sqrt",
        b1=0.9,
        b2=0.98,
        epsilon=1e-9,
    )
    config.decode.update(beam_size=4, alpha=0.6)
    return config
