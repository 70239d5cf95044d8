"""Translates: `python -m transformer_lab.translate --workdir=runs/en_fr "A sentence."`.

Without a sentence it reads lines on standard input and writes one line for each, in order, as soon
as they come; with `--config.decode.n_best=3` three lines, best first.
"""

import queue
import sys
import threading
from collections.abc import Iterable, Iterator

from absl import flags

from transformer_lab import cli
from transformer_lab.training import runs
from transformer_lab.training.writers import log

flags.DEFINE_string("workdir", "", "Directory of the trained run.")
flags.DEFINE_integer("average", 0, "How many checkpoints to average; 0: as the config says.")
flags.DEFINE_string("init_from", "", "Where an adapted run's base lies now, if it was moved.")


def main(sentences: list[str]) -> None:
    args = flags.FLAGS
    trainer, params = runs.open_run(
        cli.get_config(), cli.get_workdir(), args.average, args.init_from
    )
    task = trainer.task
    if sys.stdin is not None:
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    sys.stdout.reconfigure(encoding="utf-8")
    alone, many = task.decoder(trainer.place, rows=1), task.decoder(trainer.place)
    lines = sentences or (line.rstrip("\r\n") for line in sys.stdin or ())
    for group in available(lines, many.config.batch_size):
        decoder = alone if len(group) == 1 else many
        for translations in task.translate(decoder, params, group, log):
            print("\n".join(translations), flush=True)


def available(lines: Iterable[str], most: int) -> Iterator[list[str]]:
    """The lines in order, in groups of what has arrived: nothing waits for a line after it."""
    arrived: queue.Queue[str | None] = queue.Queue(4 * most)

    def read():
        for line in lines:
            arrived.put(line)
        arrived.put(None)

    threading.Thread(target=read, daemon=True).start()
    group: list[str] = []
    while True:
        try:
            line = arrived.get(block=not group)
        except queue.Empty:
            yield group
            group = []
            continue
        if line is None or len(group) == most:
            if group:
                yield group
            group = []
        if line is None:
            return
        group.append(line)


if __name__ == "__main__":
    cli.main(main, lambda: cli.workdir_config(runs.stored_config))
