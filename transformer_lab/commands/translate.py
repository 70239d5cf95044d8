"""Translates sentences, or the lines of standard input.

    transformer_lab translate --workdir=runs/en_fr "A sentence."

Without a sentence it reads lines on standard input and writes one line for each, in order, as soon
as they come; with `--config.decode.n_best=3` three lines, best first.
"""

import queue
import sys
import threading
from collections.abc import Iterable, Iterator

from transformer_lab import cli
from transformer_lab.tasks.abilities import Translates
from transformer_lab.training.writers import log

WORDS = True  # arguments that are no flags


def define() -> None:
    cli.run_flags()


def main(sentences: list[str]) -> None:
    trainer, params = cli.open_run(Translates, "translate", "see predict and generate")
    task = trainer.task
    sys.stdout.reconfigure(encoding="utf-8")
    alone, many = task.decoder(trainer.place, rows=1), task.decoder(trainer.place)
    for group in available(sentences or cli.input_lines(), many.config.batch_size):
        decoder = alone if len(group) == 1 else many
        for translations in task.translate(decoder, params, group, log):
            print("\n".join(translations), flush=True)


def available(lines: Iterable[str], most: int) -> Iterator[list[str]]:
    """The lines in order, in groups of those that have arrived: no line waits for a later one.

    An error of the reading is raised here, after the lines before it.
    """
    arrived: queue.Queue[str | Exception | None] = queue.Queue(4 * most)

    def read():
        end = None
        try:
            for line in lines:
                arrived.put(line)
        except Exception as error:
            end = error
        arrived.put(end)

    threading.Thread(target=read, daemon=True).start()
    group: list[str] = []
    while True:
        try:
            line = arrived.get(block=not group)
        except queue.Empty:
            yield group
            group = []
            continue
        ended = not isinstance(line, str)
        if ended or len(group) == most:
            if group:
                yield group
            group = []
        if isinstance(line, Exception):
            raise line
        if ended:
            return
        group.append(line)
