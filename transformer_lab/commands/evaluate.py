"""Scores a trained run.

    transformer_lab evaluate --workdir=runs/en_fr

Ends with one JSON line on standard output, or on a terminal with a list of 4 digits each; its
"loss" is in nats a token, without label smoothing.
`--config.decode.beam_size=4` and any other key may be changed; `--average=5` takes the mean of the
last five checkpoints. Pictures that belong to the scores are written into the directory.
"""

from absl import flags

from transformer_lab import cli
from transformer_lab.errors import known
from transformer_lab.terminal import print_values
from transformer_lab.training.loop import final_scores
from transformer_lab.training.results import write_files

SPLITS = ("train", "validation", "test")


def define() -> None:
    cli.run_flags()
    flags.DEFINE_string("split", "test", "train | validation | test.")


def main(_: list[str]) -> None:
    known("--split=", flags.FLAGS.split, SPLITS)
    trainer, params = cli.open_run()
    values, scores = final_scores(trainer, params, flags.FLAGS.split)
    write_files(scores, cli.get_workdir())
    print_values({**values, **scores.notes})
