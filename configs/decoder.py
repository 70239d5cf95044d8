"""Any published decoder-only size by its name, with its learning rate and batch where stated.

    python -m transformer_lab train --config=configs/decoder.py:gpt3_1.3b --workdir=runs/gpt3_1.3b
    python -m transformer_lab inspect --compile --config=configs/decoder.py:gpt3_1.3b \
        --topology=v5e:8x8

`python -m transformer_lab inspect --table=decoders` lists the names. Mesh and micro-batches are for
64 chips of TPU v5e up to 4e9 parameters, 64 of v5p up to 40e9, 512 of v5p beyond; the sizes for a
CPU take what devices there are. On fewer devices set --config.mesh.fsdp, --config.mesh.tensor and,
where the rows no longer divide, --config.batch.rows. Some costs: docs/scale.md.
The data are text files of yours or a prepared set of tensorflow-datasets (docs/data.md). None was
trained here.
"""

import math
from dataclasses import replace

from transformer_lab.errors import known
from transformer_lab.layers.costs import idle_parameters
from transformer_lab.models.decoder import matmul_parameters
from transformer_lab.models.presets import DECODERS
from transformer_lab.training.config import default_config, fields_of

# Up to so many parameters: copies, devices that split the weights of one, those that split heads.
# XLA has a true reduce-scatter over 16 neighbours; over 64 it makes sums of twice the bytes.
MESHES = ((40e9, 4, 16, 1), (float("inf"), 4, 32, 4))
TOKENS = 8192  # of a micro-batch on one device, at most


def get_config(arg: str = "gpt2_small"):
    """`arg` is the name of a preset."""
    known("configs/decoder.py:", arg, DECODERS)
    preset, config = DECODERS[arg], default_config(model="decoder", task="language_modeling")
    size, length = preset.config, min(preset.config.max_length, TOKENS)
    on_cpu = arg.startswith("cpu")
    config.model.update(fields_of(replace(size, dtype="bfloat16")))
    config.model.vocab_size = None  # the tokenizer's real size
    config.data.update(source="tfds", tfds_name="lm1b")
    config.tokenizer.update(kind="byte_bpe", vocab_size=size.vocab_size, lossless=True)
    config.batch.update(length=length, rows=32)
    if not on_cpu:
        idle = idle_parameters(size)
        whole = matmul_parameters(size) + idle
        data, fsdp, tensor = next(m[1:] for m in MESHES if whole <= m[0])
        expert = 1
        if idle:  # experts lie side by side, in the place of copies and of heads
            expert = math.gcd(size.experts.count, data * tensor)
            data, tensor = data * tensor // expert, 1
        config.mesh.update(data=-1, fsdp=fsdp, tensor=tensor, expert=expert)
        config.model.vocab_multiple = 128
        a_device = max(1, round((preset.batch_tokens or 500_000) / length / (data * expert * fsdp)))
        parts = -(-a_device * length // TOKENS)
        config.micro_batches = parts
        config.batch.rows = data * expert * fsdp * parts * -(-a_device // parts)
    if size.layers > 12:
        config.model.update(scan_layers=True, remat="nothing")
    config.steps = int((preset.trained_tokens or 3e11) / config.batch.rows / length)
    recipe = dict(
        learning_rate=preset.learning_rate or 3e-4,
        schedule="cosine",
        warmup_steps=2000,
        end_factor=0.1,
        b2=0.95,
        epsilon=1e-8,
        weight_decay=0.1,
        clip_norm=1.0,
    )
    config.optimizer.update({**recipe, **preset.optimizer})
    return config
