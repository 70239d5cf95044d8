"""Word vectors of the Brown corpus: skip-gram, or `:cbow`, with negative sampling; a CPU.

python -m transformer_lab.train --config=configs/word2vec_brown.py --workdir=runs/words
python -m transformer_lab.neighbours --workdir=runs/words money "king - man + woman"
"""

from transformer_lab.errors import LabError
from transformer_lab.training.config import default_config


def get_config(arg: str = "skipgram"):
    """`arg` is skipgram or cbow."""
    if arg not in ("skipgram", "cbow"):
        raise LabError(f'configs/word2vec_brown.py:"{arg}" is unknown: use skipgram or cbow')
    config = default_config(model="word_vectors", task="word_vectors")
    config.epochs = 5.0
    config.eval_every = config.save_every = 2000
    config.keep = 1
    config.tokenizer.update(kind="word", vocab_size=10_000)
    config.task.cbow = arg == "cbow"
    config.batch.rows = 1024
    config.optimizer.update(learning_rate=2e-3, schedule="linear", warmup_steps=100)
    return config
