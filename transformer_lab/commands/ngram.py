"""Scores n-gram models on a language model's data and tokens.

    transformer_lab ngram --config=configs/gpt_brown.py
    transformer_lab ngram --config=configs/gpt_brown.py --prompt="The jury said" --seed=1

The models are interpolated Kneser-Ney of each order up to `--order`, scored on the same held-out
documents with the same metrics as the language model; `--prompt` continues a text instead.
"""

import math

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from transformer_lab import cli
from transformer_lab.errors import LabError
from transformer_lab.text.ngram import NGram
from transformer_lab.text.stream import continuation
from transformer_lab.training import runs
from transformer_lab.training.config import resolve


def define() -> None:
    cli.config_file()
    flags.DEFINE_integer("order", 5, "The longest n-gram.", lower_bound=1)
    flags.DEFINE_string("split", "test", "validation | test")
    flags.DEFINE_string("prompt", None, "A text to continue.")
    flags.DEFINE_integer("num_samples", 1, "Continuations of the prompt.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Of the sampling.", lower_bound=0)


def main(_: list[str]) -> None:
    args, resolved = flags.FLAGS, resolve(cli.get_config())
    if resolved.task_kind != "language_modeling":
        raise LabError(f"n-grams need a config of language_modeling, not of {resolved.task_kind}")
    if args.split not in ("validation", "test"):
        raise LabError(f'--split="{args.split}" is unknown: use validation or test')
    task = runs.build_task(resolved, None, runs.mesh_to_use(resolved))
    train, _ = task.encode_split("train")
    tok = task.tokenizer
    fit = lambda n: NGram.train(train, n, tok.vocab_size, tok.bos_id, tok.eos_id)  # noqa: E731
    if args.prompt is not None:
        decode, model, ids = resolved.sections["decode"], fit(args.order), tok.encode(args.prompt)
        rng, temperature = np.random.default_rng(args.seed), decode.temperature or 1.0
        for _ in range(args.num_samples):
            made = model.sample(ids, decode.max_new_tokens or 100, rng, temperature)
            print(args.prompt + continuation(tok, ids, made))
        return
    table = Table("order", "nats a token", "perplexity", "bits per byte", "accuracy", "n-grams")
    documents, sizes = task.encode_split(args.split)
    for order in range(1, args.order + 1):
        model = fit(order)
        nats, tokens, right = _score(model, documents)
        row = nats / tokens, math.exp(nats / tokens), nats / math.log(2) / sizes.sum()
        counts = sum(model.sizes())
        table.add_row(str(order), *(f"{x:.4g}" for x in row), f"{right:.3f}", f"{counts:,}")
    Console().print(table)


def _score(model: NGram, documents) -> tuple[float, int, float]:
    """Nats and number of targets in all documents, and accuracy on 2,000 evenly spread targets."""
    logs = [model.log_probs(ids) for ids in documents]
    tokens = sum(map(len, logs))
    places = [(d, i) for d, ids in enumerate(documents) for i in range(len(ids))]
    some = places[:: max(1, len(places) // 2000)]
    hits = [
        int(np.argmax(model.distribution(documents[d][:i].tolist()))) == documents[d][i]
        for d, i in some
    ]
    return -float(sum(log.sum() for log in logs)), tokens, float(np.mean(hits))
