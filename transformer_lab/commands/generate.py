"""Continues a text, or draws pictures of it.

    transformer_lab generate --workdir=runs/gpt --prompt="The jury"

Text appears as it is made. `--num_samples=3 --config.decode.temperature=0.8 --seed=1` and all else
under `--config.decode` may be changed; `--prompts=FILE` continues every line, many at once, and
`--log_probs` shows the log-probability of each token. `--score=FILE` (or `--score=-` for standard
input) writes the log-probability and perplexity of each line instead of continuing it. `--chat`
takes each prompt as a user's message and writes the answers. `--draft=DIR` lets a smaller run draft
tokens (speculative decoding), which changes no greedy text, nor the distribution of drawn ones. A
run of text_to_text answers too: `--prompt="summarize: ..."`.

A run that makes pictures draws `--num_samples` of each prompt, a row of `--output=FILE.png` for
each; `--prompt=""` draws without a text, and `--config.decode.guidance=4` keeps closer to one.
"""

import json
import math
import sys
from functools import cache
from pathlib import Path

from absl import flags

from transformer_lab import cli
from transformer_lab.data.formats.lines import lines
from transformer_lab.data.images.pixels import grid
from transformer_lab.decoding.speculative import Speculator
from transformer_lab.errors import LabError, check_file
from transformer_lab.opened import open_run
from transformer_lab.ops.losses import perplexity
from transformer_lab.tasks import offers
from transformer_lab.tasks.abilities import Continues, Draws
from transformer_lab.text.stream import dropped_blank
from transformer_lab.text.tokenizer import clean
from transformer_lab.training.writers import log


def define() -> None:
    cli.run_flags()
    flags.DEFINE_string("prompt", None, "The text to continue.")
    flags.DEFINE_string("prompts", "", "A file with a prompt a line.")
    flags.DEFINE_string("score", "", "A file with a text a line to score; - for standard input.")
    flags.DEFINE_integer("num_samples", 1, "Continuations of each prompt.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Of the sampling.", lower_bound=0, upper_bound=2**32 - 1)
    flags.DEFINE_bool(
        "chat", False, "The prompt is a user's message, in the model's chat template."
    )
    flags.DEFINE_string("system", "", "With --chat: what the assistant is told before.")
    flags.DEFINE_string("draft", "", "A smaller run of the same tokens, which drafts: same texts.")
    flags.DEFINE_bool("log_probs", False, "Write JSON lines with each token's log-probability.")
    flags.DEFINE_string("output", "", "Of a run that makes pictures: the PNG file to write.")


def main(_: list[str]) -> None:
    args = flags.FLAGS
    if sum((args.prompt is not None, bool(args.prompts), bool(args.score))) != 1:
        raise LabError("give one of --prompt=TEXT, --prompts=FILE and --score=FILE")
    config = cli.get_config()
    answers = config.task.kind == "text_to_text"
    draws = offers(config.task.kind, Draws)
    if not (offers(config.task.kind, Continues) or answers or draws):
        raise LabError(f"{args.workdir} holds a run of {config.task.kind}: generate continues text")
    if answers and (args.score or args.log_probs or args.num_samples > 1 or args.chat):
        raise LabError("a text-to-text run takes --prompt or --prompts alone, prefix included")
    if args.num_samples > 1 and not draws and config.decode.beam_size > 1:
        raise LabError("--num_samples draws; a beam search gives --config.decode.n_best texts")
    if args.draft and (answers or args.score):
        raise LabError("--draft goes with a language model's --prompt or --prompts")
    if args.chat and args.score or args.system and not args.chat:
        raise LabError("--chat goes with --prompt or --prompts, and --system with --chat")
    if args.prompt and clean(args.prompt) != args.prompt:  # Python keeps such bytes as surrogates
        raise LabError("--prompt holds bytes that are no UTF-8: write it in UTF-8")
    texts = [args.prompt] if args.prompt is not None else read_lines(args.prompts or args.score)
    if draws != bool(args.output) or draws and (args.score or args.chat or args.draft):
        raise LabError(
            "a run that makes pictures takes --prompt or --prompts and --output=FILE.png"
        )
    trainer, params = cli.open_run()
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    if draws:
        made = trainer.task.draw(params, texts, args.num_samples, args.seed, trainer.place)
        Path(args.output).write_bytes(grid(made))
        log(f"{args.output}: {len(texts)} rows of {args.num_samples} pictures")
    elif answers:
        decoder = trainer.task.decoder(trainer.place)
        for best in trainer.task.translate(decoder, params, texts, log):
            print("\n".join(best))
    elif args.score:
        score(trainer, params, texts)
    elif len(texts) == 1 and config.decode.beam_size == 1 and not args.log_probs:
        for number in range(args.num_samples):
            stream(trainer, params, texts[0], number)
    else:
        batch(trainer, params, texts)


def read_lines(name: str) -> list[str]:
    """The lines of a file, or of standard input for "-". Raises: LabError if there are none."""
    if name == "-":
        found = list(cli.input_lines())
    else:
        found = [line for _, line in lines(check_file(name))]
    if not found:
        raise LabError(f"{name} holds no line")
    return found


def stream(trainer, params, prompt: str, number: int) -> None:
    """Writes the prompt and its continuation as it is made, with a blank line between samples; of
    a conversation the answer alone."""
    task, ids = trainer.task, prompt_ids(trainer.task, prompt)
    generator = generator_of(trainer)
    generator.new_tokens(ids)  # refuses before anything is written
    print("\n" * (number > 0) + ("" if flags.FLAGS.chat else prompt), end="", flush=True)
    blank = blank_of(task, prompt, ids)
    for new in task.stream(generator, params, ids, number, flags.FLAGS.seed):
        print(new.removeprefix(blank), end="", flush=True)
        blank = "" if new else blank
    print(flush=True)


def prompt_ids(task, prompt: str) -> list[int]:
    """The ids that are continued: those of the prompt, or with --chat of a conversation that it
    opens."""
    if not flags.FLAGS.chat:
        return task.prompt_ids(prompt)
    return task.chat.ids(opening(flags.FLAGS.system) + [{"role": "user", "content": prompt}])


def opening(system: str) -> list[dict[str, str]]:
    """The messages of a conversation before its first turn."""
    return [{"role": "system", "content": system}] if system else []


def blank_of(task, prompt: str, ids: list[int]) -> str:
    """A space at the end of the prompt that the ids lack, and the continuation must not repeat."""
    return (
        "" if flags.FLAGS.chat else dropped_blank(task.tokenizer, prompt, task.without_start(ids))
    )


def generator_of(trainer):
    """The task's generator; long prompts shorten the output unless a flag sets its length."""
    task, draft = trainer.task, flags.FLAGS.draft
    generator = drafting(task, draft) if draft else task.generator(trainer.place)
    generator.shrinks = "config.decode.max_new_tokens" not in flags.FLAGS
    return generator


@cache
def drafting(task, workdir: str) -> Speculator:
    """The generator for which the run in a directory drafts."""
    run = open_run(workdir)
    if not isinstance(run.task, Continues):
        raise LabError(f"--draft={workdir} holds a run of {run.config.task.kind}: it cannot draft")
    if run.task.tokenizer.to_files() != task.tokenizer.to_files():
        raise LabError(f"--draft={workdir} has another tokenizer: train it with this run's")
    draft = run.task.model, run.params
    return Speculator(task.model, task.decode_settings(), draft, eos_id=task.tokenizer.eos_id)


def batch(trainer, params, prompts: list[str]) -> None:
    """Writes the continuations of all prompts in order, computed many at once."""
    task, args = trainer.task, flags.FLAGS
    ids = [prompt_ids(task, prompt) for prompt in prompts]
    found = generator_of(trainer)(params, ids, args.num_samples, args.seed, task.stops)
    for prompt, its, samples in zip(prompts, ids, found, strict=True):
        blank = blank_of(task, prompt, its)
        for made in samples:
            text = task.text_of(made, its).removeprefix(blank)
            if args.log_probs:
                pieces = [task.tokenizer.piece(i) for i in made.ids]
                row = {"prompt": prompt, "text": text, "ended": made.ended, "tokens": pieces}
                if task.sections["decode"].beam_size > 1:  # a search knows the sum alone
                    row["log_prob"] = made.log_probs[0]
                else:
                    row["log_probs"] = made.log_probs
                print(json.dumps(row))
            else:
                print(text if args.chat else prompt + text)


def score(trainer, params, texts: list[str]) -> None:
    """Writes a JSON line for each text: log-probability, tokens, perplexity, bits per byte."""
    scores = trainer.task.score_texts(params, texts, trainer.place)
    for text, (nats, tokens) in zip(texts, scores, strict=True):
        size = len(text.encode())
        row = {
            "text": text,
            "log_prob": -nats,
            "tokens": tokens,
            "perplexity": perplexity(nats / max(tokens, 1)),
            "bits_per_byte": nats / math.log(2) / size if size else None,
        }
        print(json.dumps(row, ensure_ascii=False), flush=True)
