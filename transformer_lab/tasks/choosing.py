"""What a language model scores on benchmarks of endings, as in lm-evaluation-harness, and on those
whose answers it writes."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from transformer_lab.data.choices import Item
from transformer_lab.decoding.continuations import Continuations
from transformer_lab.decoding.generate import Generator
from transformer_lab.ops.losses import perplexity
from transformer_lab.tasks.base import Params, Place
from transformer_lab.tasks.scores import answer_f1, exact_match

# An item's result: "key", "gold" and a number for each choice under NUMBERS, or those of WRITTEN
Row = dict[str, Any]
NUMBERS = ("log_probs", "greedy", "bytes", "tokens")
WRITTEN = ("exact", "f1", "last_number")
ENDS = ("\n\n", "Question:", "Title:")  # where a written answer is over
ANSWER_TOKENS = 256
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
# The choice with the highest log-probability, as it is, or divided by the choice's length.
NORMALISATIONS = {"acc": None, "acc_bytes": "bytes", "acc_tokens": "tokens"}


def key_of(item: Item, model: str) -> str:
    """What tells a stored result apart: the item's text and the model."""
    asked = item if item.answers else item[:3]
    return hashlib.sha256(json.dumps([asked, model]).encode()).hexdigest()[:24]


def digest(params: Params) -> str:
    """A digest of parameters, which differs as soon as one of their first numbers does."""
    parts = [np.asarray(leaf.reshape(-1)[:64], np.float32) for leaf in jax.tree.leaves(params)]
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def encode_pair(task: Any, context: str, choice: str) -> tuple[list[int], list[int]]:
    """The ids of a context and of what follows, which are those of the whole text, divided."""
    kept = context.rstrip(" ")  # spaces belong to the word that follows
    whole = task.tokenizer.encode(context + choice)
    cut = min(len(task.tokenizer.encode(kept)), len(whole) - 1)
    start = [task.start_id] if task.config.prompt_start or not cut else []
    return [*start, *whole[:cut]], whole[cut:]


def score_items(
    task: Any, scorer: Continuations, params: Params, items: Sequence[Item]
) -> Iterator[tuple[int, Row]]:
    """Yields (number of the item, its result without a key) as they are computed."""
    groups, owners = [], []
    for n, item in enumerate(items):
        pairs = [encode_pair(task, c, e) for c, e in zip(_each(item), item.choices, strict=True)]
        parts: dict[tuple[int, ...], list[int]] = {}
        for k, (context, _) in enumerate(pairs):
            parts.setdefault(tuple(context), []).append(k)
        for context, members in parts.items():
            groups.append((context, [pairs[k][1] for k in members]))
            owners.append((n, members))
    waiting: dict[int, list[Any]] = {}
    for group, scores in scorer(params, groups):
        n, members = owners[group]
        found = waiting.setdefault(n, [None] * len(items[n].choices))
        for k, score, end in zip(members, scores, groups[group][1], strict=True):
            found[k] = (*score, len(end))
        if None not in found:
            yield n, _row(items[n], waiting.pop(n))


def answer_items(
    task: Any, place: Place, params: Params, items: Sequence[Item]
) -> Iterator[tuple[int, Row]]:
    """Yields (number of the item, its result without a key) of items whose answers are written:
    the likeliest tokens up to one of `ENDS`, at most `ANSWER_TOKENS`."""
    settings = {"beam_size": 1, "n_best": 1, "temperature": 0.0, "max_new_tokens": ANSWER_TOKENS}
    config = replace(task.decode_settings(), **settings)
    how = {"eos_id": task.tokenizer.eos_id, "rows_multiple": task.rows_multiple, "place": place}
    generator = Generator(task.model, config, **how)
    generator.shrinks = True
    stops = lambda prompt, ids: any(end in task.continuation(prompt, ids) for end in ENDS)  # noqa: E731
    prompts = [task.prompt_ids(item.contexts[0]) for item in items]
    order = sorted(range(len(items)), key=lambda n: len(prompts[n]))
    for first in range(0, len(order), config.batch_size):
        some = order[first : first + config.batch_size]
        found = generator(params, [prompts[n] for n in some], stops=stops)
        for n, (best, *_) in zip(some, found, strict=True):
            text = task.continuation(prompts[n], best.ids)
            yield (
                n,
                written_row(items[n], text[: min(text.find(e) % (len(text) + 1) for e in ENDS)]),
            )


def written_row(item: Item, text: str) -> Row:
    """The result of an answer in the model's words: SQuAD's exact match and F1 of its first line,
    and whether its last number is the last number of a right answer, as GSM8K counts."""
    first = text.strip().partition("\n")[0]
    numbers = {_last_number(answer) for answer in item.answers} - {None}
    return {
        "text": text,
        "exact": exact_match(item.answers, first),
        "f1": answer_f1(item.answers, first),
        "last_number": float(_last_number(text) in numbers),
    }


def _last_number(text: str) -> float | None:
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def _each(item: Item) -> tuple[str, ...]:
    """The context of each choice."""
    return item.contexts * len(item.choices) if len(item.contexts) == 1 else item.contexts


def _row(item: Item, found: list[tuple[float, bool, int]]) -> Row:
    log_probs, greedy, tokens = map(list, zip(*found, strict=True))
    sizes = [max(len(choice.removeprefix(" ").encode()), 1) for choice in item.choices]
    return dict(zip(NUMBERS, (log_probs, greedy, sizes, tokens), strict=True)) | {"gold": item.gold}


def metrics(rows: Iterable[Row]) -> dict[str, tuple[float, float]]:
    """Each metric's mean and its standard error over the items.

    With several choices: the accuracy under each normalisation. With one: the share of items whose
    every token is the likeliest (`acc`), and the perplexity of the ending, whose error is that of
    the logarithm times the value. Of written answers the means of `WRITTEN`."""
    rows = list(rows)
    if "text" in rows[0]:
        return {name: _mean([float(row[name]) for row in rows]) for name in WRITTEN}
    if all(len(row["log_probs"]) == 1 for row in rows):
        nats = [-row["log_probs"][0] for row in rows]
        mean, error = _mean(nats)
        return {
            "acc": _mean([float(row["greedy"][0]) for row in rows]),
            "perplexity": (perplexity(mean), perplexity(mean) * error),
        }
    return {name: _mean([_right(row, by) for row in rows]) for name, by in NORMALISATIONS.items()}


def _right(row: Mapping[str, Any], by: str | None) -> float:
    scores = np.asarray(row["log_probs"]) / (1.0 if by is None else np.asarray(row[by]))
    return float(scores.argmax() == row["gold"])


def _mean(values: Sequence[float]) -> tuple[float, float]:
    spread = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(np.mean(values)), float(spread)
