"""One size of three families on one task each, film reviews or software strings, for a CPU.

python -m transformer_lab train --config=configs/families.py:prefix,translate --workdir=runs/prefix

encoder_decoder, prefix and causal (one stack over source and target) learn a task as text to text:
"sentiment: ..." to fresh or rotten, "translate English to French: ..."; encoder names the review's
class and cannot translate. Stacks of 2 + 2 layers, or of 5 with as many parameters.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config

KINDS = {
    "encoder": "encoder", "encoder_decoder": "encoder_decoder", "prefix": "decoder_seq2seq",
    "causal": "decoder_seq2seq",
}  # fmt: skip
RUNS = [f"{kind},{task}" for kind in KINDS for task in ("sentiment", "translate")]
RUNS.remove("encoder,translate")


def get_config(arg: str = "encoder_decoder,translate"):
    """`arg` is the family and its task."""
    known("configs/families.py:", arg, RUNS)
    kind, task = arg.split(",")
    alone = kind == "encoder"
    config = default_config(model=KINDS[kind], task="classification" if alone else "text_to_text")
    config.steps, config.epochs = 500, 2.0 if task == "sentiment" else None
    config.eval_every = config.save_every = 500
    config.keep = 1
    config.tokenizer.update(kind="wordpiece" if alone else "unigram", vocab_size=4000)
    config.batch.update(tokens_per_batch=1024 if alone else 2048, buckets=6, max_length=64)
    config.model.update(
        layers=2 if kind == "encoder_decoder" else 5,
        width=192,
        heads=4,
        head_dim=48,
        feed_forward_width=768,
        activation="gelu",
        positions="rope",
        norm_place="pre",
        max_length=96,
        dropout=0.1,
    )
    config.optimizer.update(learning_rate=2e-3, warmup_steps=100, schedule="cosine")
    if alone:
        config.model.kernel_init = "xavier_uniform"  # as the others start
        config.data.source = "reviews"
        return config
    config.data.tasks = (task,)
    config.task.samples = 0
    if kind != "encoder_decoder":
        config.model.mask = kind
    return config
