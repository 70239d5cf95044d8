"""GPT-2 small (Radford 2019): 124 M parameters, bfloat16, one GPU or TPU or many.

    python -m transformer_lab train --config=configs/gpt2_small.py --workdir=runs/gpt2_small \
        --config.data.path=FOLDER_OF_TEXT
    python -m benchmarks.train_step --config=configs/gpt2_small.py

Recipe of the GPT-3 paper's smallest size (Brown 2020, table 2.1). Not trained here so far.
"""

from dataclasses import replace

from transformer_lab.errors import known
from transformer_lab.models.presets import DECODERS
from transformer_lab.training.config import default_config, fields_of


def get_config(arg: str = ""):
    """No argument is taken."""
    known("configs/gpt2_small.py:", arg, ("",))
    config = default_config(model="decoder", task="language_modeling")
    size = replace(DECODERS["gpt2_small"].config, vocab_size=None, vocab_multiple=128)
    config.model.update(fields_of(size))
    config.model.update(
        dtype="bfloat16",
        attention_dropout=0.0,
        dropout=0.0,
    )
    config.steps = 600_000
    config.eval_every = config.save_every = 2000
    config.data.update(source="files")
    config.tokenizer.update(kind="byte_bpe", vocab_size=50_257, lossless=True)
    config.batch.update(rows=32, length=1024)
    config.micro_batches = 1
    config.optimizer.update(
        learning_rate=6e-4,
        schedule="cosine",
        warmup_steps=700,
        end_factor=0.1,
        b2=0.95,
        epsilon=1e-8,
        weight_decay=0.1,
        clip_norm=1.0,
    )
    return config
