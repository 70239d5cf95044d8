"""A study of positions: the small GPT on the Brown corpus, trained at 128 tokens, scored to 512.

for kind in none learned sinusoidal binary index index_scaled rope alibi t5 transformer_xl; do
    python -m transformer_lab train --config=configs/gpt_positions.py:$kind --workdir=runs/p/$kind
done

Press 2021, figure 1, asks the same question. Beside fixed vectors of size one (sinusoids, binary
digits) token vectors are multiplied by the root of the width (Vaswani 2017, section 3.4).
`:learned+every` adds the vectors before each layer, `:rope+interleaved` pairs neighbours. The last
lines of a run state bits per byte at each length.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = "rope"):
    """`arg` is a kind of positions (`model.positions`), with a switch after a plus sign."""
    kind, _, switch = arg.partition("+")
    known("configs/gpt_positions.py: the switch ", switch, ("", "every", "interleaved"))
    config = default_config(model="decoder", task="language_modeling")
    config.steps = 500
    config.eval_every = config.save_every = 250
    config.tokenizer.update(kind="bpe", vocab_size=2000, lossless=True)
    config.batch.update(rows=16, length=128)
    config.task.update(samples=0, other_lengths=(256, 512))
    config.model.update(
        layers=3,
        width=128,
        heads=4,
        head_dim=32,
        feed_forward_width=512,
        dropout=0.0,
        max_length=512,
        positions=kind,
        embedding_scale=kind in ("sinusoidal", "binary"),
        positions_every_layer=switch == "every",
        rope_interleaved=switch == "interleaved",
    )
    config.optimizer.update(
        name="muon", learning_rate=1e-2, warmup_steps=50, schedule="cosine", clip_norm=1.0
    )
    return config
