"""Any published decoder-only size by its name, with its learning rate and batch where stated.

    python -m transformer_lab.train --config=configs/decoder.py:gpt3_125m --workdir=runs/gpt3_125m

`python -m transformer_lab.inspect --table=decoders` lists the names. The data are text files of
yours or a prepared set of tensorflow-datasets (docs/data.md). None was run here.
"""

from dataclasses import replace

from transformer_lab.errors import LabError, nearest
from transformer_lab.models.presets import DECODERS
from transformer_lab.training.config import default_config, fields_of


def get_config(arg: str = "gpt2_small"):
    """`arg` is the name of a preset."""
    if arg not in DECODERS:
        raise LabError(f'configs/decoder.py:"{arg}" is unknown{nearest(arg, DECODERS)}')
    preset = DECODERS[arg]
    config = default_config(model="decoder", task="language_modeling")
    config.model.update(fields_of(replace(preset.config, dtype="bfloat16")))
    config.model.vocab_size = None  # the tokenizer's real size
    config.data.update(source="tfds", tfds_name="lm1b")
    config.tokenizer.update(kind="byte_bpe", vocab_size=preset.config.vocab_size, lossless=True)
    config.batch.length = preset.config.max_length
    config.batch.rows = max(
        8, (preset.batch_tokens or 500_000) // preset.config.max_length // 8 * 8
    )
    config.steps = int((preset.trained_tokens or 3e11) / config.batch.rows / config.batch.length)
    config.optimizer.update(
        learning_rate=preset.learning_rate or 3e-4,
        schedule="cosine",
        warmup_steps=2000,
        end_factor=0.1,
        b2=0.95,
        epsilon=1e-8,
        weight_decay=0.1,
        clip_norm=1.0,
    )
    return config
