"""Film reviews, fresh or rotten, by fine-tuning an encoder; held-out reviews are of other films.

    python -m transformer_lab train --config=configs/finetune_sentiment.py:lora --workdir=runs/s \
        --init_from=hf:DIR

The model's sizes are those of --init_from: a run of configs/bert_brown.py, or a Hugging Face
directory (bert, roberta, distilbert). `:METHOD` is full, head, last, bias, lora or adapters;
`:scratch` trains the sizes of configs/bert_brown.py from nothing.

2026-11-28, 2 cores (AMD EPYC, AVX-512) shared with other work, accuracy on 1,291 held-out reviews:
MiniLM-L6, :full, 350 steps in about 8 minutes, 0.839; :scratch, 392 steps in 4 minutes, 0.742;
TF-IDF with logistic regression (`transformer_lab baseline`) 0.773; the larger class 0.608.
experiments/adaptation.py compares the other ways.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config

RATES = {  # a good peak for each way of adapting
    "full": 1e-4, "head": 3e-3, "last": 2e-4, "bias": 1e-3, "lora": 1e-3, "adapters": 1e-3,
    "scratch": 1e-3,
}  # fmt: skip


def get_config(arg: str = "full"):
    """`arg` says what of the model is trained."""
    known("configs/finetune_sentiment.py:", arg, RATES)
    config = default_config(model="encoder", task="classification")
    config.epochs = 2.0
    config.eval_every = config.save_every = 200
    config.keep = 2
    config.data.source = "reviews"
    config.tokenizer.update(kind="wordpiece", vocab_size=4000)
    config.batch.update(tokens_per_batch=2048, buckets=4, max_length=64)
    if arg == "scratch":
        config.model.update(
            layers=4, width=192, heads=6, head_dim=32, feed_forward_width=768, max_length=128
        )
    else:
        config.model_from_init = True
        config.adapt.method = arg
    config.model.update(dropout=0.1, attention_dropout=0.0)
    if arg == "adapters":
        config.model.adapter_width = 48
    config.optimizer.update(
        learning_rate=RATES[arg],
        schedule="linear",
        warmup_steps=50,
        weight_decay=0.01,
        clip_norm=1.0,
    )
    return config
