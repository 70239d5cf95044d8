"""Trees as sequences (Vinyals 2015): a sentence is translated to its bracket string, on a CPU.

python -m transformer_lab train --config=configs/parse_trees.py --workdir=runs/trees

`:python` reads expressions of the standard library and writes their exact syntax trees; `:brown`
reads sentences of the Brown corpus and writes what the parser Link Grammar makes of them, so that
its scores are agreement with that parser.

2026-11-29, one of 2 cores (AMD EPYC, shared with other work), 800 steps in 2 minutes of processor
time, 200 held-out expressions: labelled F1 0.661, unlabelled 0.679 (right-branching 0.197), 65 % of
the outputs are trees with a leaf for each word, 58 % all right. Of 200 English outputs 22 % are
trees, 4.5 % with a leaf for each word, F1 0.024: so short a run is far below right-branching trees
(unlabelled 0.465). 2026-11-30, `:brown` for 3,000 steps, 2 minutes of one core, 500 test sentences:
43 % are trees, 13 % with a leaf for each word, F1 0.083, unlabelled 0.102 (right-branching 0.462):
still far below. docs/parsing.md has more.
"""

from transformer_lab.errors import known
from transformer_lab.training.config import default_config

SOURCES = {"python": "python_trees", "brown": "link_grammar"}


def get_config(arg: str = "python"):
    """`arg` is python or brown."""
    known("configs/parse_trees.py:", arg, SOURCES)
    config = default_config(model="encoder_decoder", task="translation")
    config.update(steps=800, log_every=50, eval_every=800, save_every=100, keep=2)
    config.task.update(brackets=True, label_smoothing=0.0, samples=4)
    config.data.update(source=SOURCES[arg], max_characters=400)
    # Words and brackets with what follows at once, such as "XX))", become one piece each.
    config.tokenizer.update(kind="plain_bpe", vocab_size=2000)
    config.batch.update(tokens_per_batch=1536, buckets=2, max_length=56)
    config.model.update(
        layers=2,
        width=128,
        heads=4,
        head_dim=32,
        feed_forward_width=384,
        dropout=0.1,
        norm_place="pre",
        max_length=128,
    )
    config.optimizer.update(learning_rate=3e-3, warmup_steps=100, schedule="cosine")
    return config
