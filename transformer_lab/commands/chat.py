"""Talks with a model in the terminal, by the chat template that came with it.

    transformer_lab chat --workdir=runs/smollm2 --system="You answer in one sentence."

Every line of input is a turn; the answer appears as it is made. When the conversation outgrows the
model's context, its oldest turns are forgotten. All under `--config.decode` may be changed, such as
`--config.decode.temperature=0.2`; standard input may also be a pipe.
"""

import sys

from absl import flags

from transformer_lab import cli
from transformer_lab.commands.generate import opening
from transformer_lab.errors import LabError
from transformer_lab.tasks import offers
from transformer_lab.tasks.abilities import Continues
from transformer_lab.training.writers import log

NEW_TOKENS = (
    512  # of an answer, unless decode.max_new_tokens is given, and half the context is more
)


def define() -> None:
    cli.run_flags()
    flags.DEFINE_string("system", "", "What the assistant is told before the conversation.")
    flags.DEFINE_integer("seed", 0, "Of the sampling.", lower_bound=0, upper_bound=2**32 - 1)


def main(_: list[str]) -> None:
    args, config = flags.FLAGS, cli.get_config()
    if not offers(config.task.kind, Continues):
        raise LabError(f"{args.workdir} holds a run of {config.task.kind}: chat needs a decoder")
    if config.decode.beam_size > 1:
        raise LabError("chat shows text as it is made, a beam search does not: use beam_size=1")
    if "config.decode.max_new_tokens" not in args:
        config.decode.max_new_tokens = min(NEW_TOKENS, config.model.max_length // 2)
    trainer, params = cli.open_run()
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    converse(trainer.task, trainer.place, params, args.system, args.seed)


def converse(task, place, params, system: str, seed: int) -> None:
    """Answers the lines of standard input, each with what was said before."""
    generator, messages = task.generator(place), opening(system)
    room = task.model_config.max_length - max(task.sections["decode"].max_new_tokens, 1)
    task.chat  # noqa: B018  a template that is missing or wrong is refused now
    prompt()
    for number, line in enumerate(cli.input_lines()):
        if line.strip():
            asked = [*messages, {"role": "user", "content": line}]
            try:
                ids, asked = task.chat.fitting(asked, room)
            except LabError as error:  # of this line: the conversation goes on
                log(str(error))
                prompt()
                continue
            answer = ""
            for new in task.stream(generator, params, ids, number, seed):
                print(new, end="", flush=True)
                answer += new
            print(flush=True)
            messages = [*asked, {"role": "assistant", "content": answer}]
        prompt()


def prompt() -> None:
    """Asks a person, not a pipe, for a line."""
    if sys.stdin is not None and sys.stdin.isatty():
        print("> ", end="", flush=True)
