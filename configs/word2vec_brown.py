"""Word vectors of the Brown corpus: skip-gram, or `:cbow`, with negative sampling; a CPU.

python -m transformer_lab train --config=configs/word2vec_brown.py --workdir=runs/words
python -m transformer_lab neighbours --workdir=runs/words money "king - man + woman"

2026-11-28, one core (AMD EPYC, AVX-512): 3 minutes; 2.486 nats a pair of held-out documents, where
vectors of zeros have 6 ln 2 = 4.159. Neighbours of minutes: fifteen, hours, fifty; of cannot: must,
can, should; of didn: couldn, wouldn, wasn. A million words are too few for analogies: this one
ends among surnames.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config


def get_config(arg: str = "skipgram"):
    """`arg` is skipgram or cbow."""
    known("configs/word2vec_brown.py:", arg, ("skipgram", "cbow"))
    config = default_config(model="word_vectors", task="word_vectors")
    config.epochs = 5.0
    config.eval_every = config.save_every = 2000
    config.keep = 1
    config.tokenizer.update(kind="word", vocab_size=10_000)
    config.task.cbow = arg == "cbow"
    config.batch.rows = 1024
    config.optimizer.update(learning_rate=2e-3, schedule="linear", warmup_steps=100)
    return config
