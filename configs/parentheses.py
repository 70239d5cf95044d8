"""Are parentheses balanced? Recurrent nets and a transformer, tested beyond their lengths.

python -m transformer_lab train --config=configs/parentheses.py:lstm --workdir=runs/lstm

`:NET` is elman, gated, gru, lstm, lstm_peephole or transformer, on texts of 16 to 32 times +1 and
-1; `:NET+ten` asks for five kinds of parentheses, which must match, in texts of 10 to 20. The last
line states the accuracy at lengths beyond those of training, and baselines.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config

NETS = ("elman", "gated", "gru", "lstm", "lstm_peephole", "transformer")


def get_config(arg: str = "lstm"):
    """`arg` is the net, with the alphabet after a plus sign."""
    net, _, symbols = arg.partition("+")
    known("configs/parentheses.py:", net, NETS)
    kind = "encoder" if net == "transformer" else "recurrent"
    config = default_config(model=kind, task="parentheses")
    config.steps = 3000
    config.log_every = 50
    config.eval_every = 100
    config.save_every = 1000
    config.keep = 1
    config.data.update(symbols=symbols or "signs", other_lengths=(16, 24, 32, 48, 64, 96))
    if symbols == "ten":
        config.data.update(min_length=10, max_length=20, other_lengths=(10, 16, 20, 32, 48))
    config.tokenizer.kind = "char"
    config.batch.update(tokens_per_batch=2176, buckets=1, max_length=128)
    config.model.max_length = 128
    if kind == "recurrent":
        config.model.update(cell=net, layers=1, width=64, embedding_width=16)
    else:
        config.model.update(
            layers=2,
            width=48,
            heads=4,
            head_dim=12,
            feed_forward_width=96,
            norm_place="pre",
            positions="sinusoidal",
            types=0,
            pooler=False,
            dropout=0.0,
            attention_dropout=0.0,
            head_dropout=0.0,
        )
    config.optimizer.update(
        learning_rate=5e-3, warmup_steps=100, schedule="cosine", clip_norm=1.0, epsilon=1e-8
    )
    return config
