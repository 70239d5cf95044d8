"""Scores what a model must beat, on the same splits as its config or its run.

    transformer_lab baseline --config=configs/finetune_sentiment.py

Of classes of texts: the most frequent one, and logistic regression on TF-IDF, whose regularisation
C is chosen on the validation split. Of tags: each word's own, and a hidden Markov model. Of images:
logistic regression on the pixels. Of translation: a dictionary learned from the training pairs. Of
series: the seasonal naive forecast, Theta and autoregression. Of a language model: Kneser-Ney
n-grams of each order up to `--order` on its own tokens, which continue a text with
`--prompt="The jury said"`. `--workdir=RUN` takes the config of a run.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import flags

from transformer_lab import cli, tasks
from transformer_lab.errors import LabError
from transformer_lab.kinds import kinds
from transformer_lab.tasks import baselines
from transformer_lab.terminal import print_table, short
from transformer_lab.text.stream import continuation
from transformer_lab.training import runs
from transformer_lab.training.checkpoint import Checkpoints
from transformer_lab.training.config import Resolved, resolve
from transformer_lab.training.writers import log

CONFIG_FIRST = True  # a word in front is --config


def define() -> None:
    cli.run_or_config()
    flags.DEFINE_integer("order", 5, "The longest n-gram.", lower_bound=1)
    flags.DEFINE_string("prompt", None, "A text for n-grams to continue.")
    flags.DEFINE_integer("num_samples", 1, "Continuations of the prompt.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Of the sampling.", lower_bound=0)


def main(_: list[str]) -> None:
    args, resolved = flags.FLAGS, resolve(cli.get_config())
    assets = assets_of(cli.get_workdir()) if args.workdir else None
    if args.prompt is not None:
        proceed(resolved, assets)
        return
    found = list(measure(resolved, args.order, assets))
    names = list(dict.fromkeys(name for *_, values in found for name in values))
    rows = [
        [*each[:2], f"{each[2]:,}", *(short(each[3].get(name, "-")) for name in names)]
        for each in found
    ]
    print_table(["baseline", "split", "examples", *names], rows)


def assets_of(workdir: Path) -> dict[str, bytes] | None:
    """The files of a run's newest checkpoint, such as its tokenizer; None before the first."""
    with Checkpoints(workdir, 1, log) as kept:
        good = kept.newest(1)
        return kept.read(good[0]).assets if good else None


def measure(
    resolved: Resolved, order: int = 5, assets: dict[str, bytes] | None = None
) -> Iterator[tuple[str, str, int, dict[str, float]]]:
    """Yields each baseline's name, held-out split, its number of examples, and scores.

    `assets` are the files of a checkpoint, whose tokenizer is then used and none is trained.
    Raises: LabError for a task without a baseline, or data that does not go with it.
    """
    if resolved.task_kind not in (able := kinds(tasks.__name__, "BASELINE")):
        raise LabError(f"a baseline needs a task {', '.join(able)}, not {resolved.task_kind}")
    function = getattr(baselines, tasks.objective(resolved.task_kind).BASELINE)
    build = lambda: runs.build_task(resolved, assets, runs.mesh_to_use(resolved))  # noqa: E731
    yield from function(resolved.sections, build, order)


def proceed(resolved: Resolved, assets: dict[str, bytes] | None) -> None:
    """Prints continuations of --prompt, drawn from n-grams of the longest order."""
    if resolved.task_kind != "language_modeling":
        raise LabError(f"--prompt needs a config of language_modeling, not {resolved.task_kind}")
    args, task = flags.FLAGS, runs.build_task(resolved, assets, runs.mesh_to_use(resolved))
    model = baselines.ngram(task, task.encode_split("train")[0], args.order)
    ids, decode = task.tokenizer.encode(args.prompt), resolved.sections["decode"]
    rng, temperature = np.random.default_rng(args.seed), decode.temperature or 1.0
    for _ in range(args.num_samples):
        made = model.sample(ids, decode.max_new_tokens or 100, rng, temperature)
        print(args.prompt + continuation(task.tokenizer, ids, made))
