"""LibreOffice's help: from an entry of its index to the page, by an encoder of sentences.

    python -m transformer_lab train --config=configs/retrieve_help.py --workdir=runs/help \
        --init_from=hf:DIR

DIR is MiniLM's directory, or of any BERT, RoBERTa or DistilBERT. `:vectors` compares one vector of
the query with one of the page, `:tokens` each token with each (late interaction, ColBERT), `:cross`
reads the first 20 pages of BM25 together with the query. A second part chooses languages and set:
`:vectors,fr-en` has French entries and English pages, `:vectors,boolq` BoolQ's questions.

2026-11-29, 2 cores (AMD EPYC) shared with much other work, `:vectors`, 30 steps of 16 queries (0.08
epochs; about 2 minutes of a core), 671 queries whose pages no training query leads to, among 1,521
pages, of which 48 tokens are read: recall at 1 and 10 0.481 and 0.760 (MiniLM untrained, 64 tokens:
0.472, 0.724; BM25 on whole pages: 0.456, 0.765), MRR 0.574 (BM25 0.569), nDCG at 10 0.615 (0.612);
fused with BM25 0.525, 0.784, 0.620 and 0.653. 2026-11-30, half a minute of one core: `:tokens`
0.517, 0.747, 0.600 and 0.629; `:cross` 0.306, 0.717, 0.434 and 0.494, and after an epoch of 373
steps, 6 minutes, 0.505, 0.771, 0.595 and 0.633, fused 0.529, 0.791, 0.625 and 0.663; `:vectors`
after an epoch, 5 minutes, 0.498, 0.750, 0.594 and 0.625, fused 0.537, 0.784, 0.630 and 0.660.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config

SCORINGS = ("vectors", "tokens", "cross")


def get_config(arg: str = "vectors,en-en"):
    """`arg` is SCORING or SCORING,SET: a set is boolq, or two languages of en, fr, de."""
    scoring, _, chosen = arg.partition(",")
    known("configs/retrieve_help.py:", scoring, SCORINGS)
    config = default_config(model="encoder", task="retrieval")
    config.steps = 30
    config.eval_every = 30
    config.save_every = 10
    config.keep = 1
    config.model_from_init = True
    config.model.update(dropout=0.0, attention_dropout=0.0)
    if chosen == "boolq":
        config.data.source = "boolq"
    else:
        config.data.languages = chosen or "en-en"
    config.task.scoring = scoring
    config.batch.update(tokens_per_batch=2784, buckets=1, max_length=48)
    config.optimizer.update(
        learning_rate=1e-4,
        schedule="linear",
        warmup_steps=10,
        weight_decay=0.01,
        clip_norm=1.0,
    )
    return config
