"""Finds words near a word or a sum of words, by trained word vectors.

    transformer_lab neighbours --workdir=runs/words money
    transformer_lab neighbours --workdir=runs/words "king - man + woman"

Each answer is a line: the word, and its cosine with the query.
"""

import sys

from absl import flags

from transformer_lab import cli
from transformer_lab.errors import LabError

WORDS = True  # arguments that are no flags


def define() -> None:
    cli.run_flags()
    flags.DEFINE_integer("count", 10, "How many words.", lower_bound=1)


def main(queries: list[str]) -> None:
    config, workdir = cli.get_config(), cli.get_workdir()
    if config.task.kind != "word_vectors":
        raise LabError(f"{workdir} holds a run of {config.task.kind}, not of word_vectors")
    if not queries:
        raise LabError('give a word, or "a - b + c"')
    trainer, params = cli.open_run()
    sys.stdout.reconfigure(encoding="utf-8")
    for query in queries:
        for word, cosine in trainer.task.nearest(params, query, flags.FLAGS.count):
            print(f"{word}\t{cosine:.4f}")
