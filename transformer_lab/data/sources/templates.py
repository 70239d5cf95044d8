"""Five tasks of the house as instructions in words: what is asked stands before a colon."""

import random
from collections.abc import Iterator
from typing import Any

from transformer_lab.data.dialogues import plain
from transformer_lab.data.fetch import folders
from transformer_lab.data.sources import brackets, brown, reverse, sums
from transformer_lab.data.splits import Found, Item, Report

EACH = 1500  # instructions of a task
SIZES = range(5, 13)  # words of a sentence
CLASSES = {"nn": "noun", "vb": "verb", "jj": "adjective"}  # base tags of Brown


def instructions(config: Any, report: Report) -> Found:
    """Words backwards, brackets to be closed, sums below 100, and of sentences of the Brown corpus
    the last word, and whether a word is a noun, a verb or an adjective; always the same.

    "Write backwards: the cat sees\\nAnswer:" has the answer " sees cat the". Each task has the same
    share of every split, and the sentences of a document are in one split."""
    documents = brown.read(folders(config.path, brown.PACKAGE)[0])
    made = {
        "Write backwards": ((item.group, *item.row) for item in reverse.make(EACH)),
        "Close the brackets": _again(brackets.instructions(config, report)),
        "Add the numbers": _again(sums.instructions(config, report)),
        "Give the last word": _last_words(documents),
        "Noun, verb or adjective": _classes(documents),
    }
    turns = zip(range(EACH), *made.values(), strict=False)
    items = [
        Item(group, plain(f"{task}: {asked}\nAnswer:", f" {answer}"), task)
        for _, *turn in turns
        for task, (group, asked, answer) in zip(made, turn, strict=True)
    ]
    return Found({"train": items}, brown.LICENCE)


def _again(found: Found) -> Iterator[tuple[str, str, str]]:
    """The group, question and answer of another source's instructions, in an order drawn once."""
    for item in _drawn(found.parts["train"]):
        (_, asked), (_, answer) = item.row.turns
        yield item.group, asked, answer


def _last_words(documents: list[brown.BrownDocument]) -> Iterator[tuple[str, str, str]]:
    for document, sentence in _sentences(documents):
        words = [word for word, _ in sentence]
        last = next((word for word in reversed(words) if word.isalpha()), "")
        if last:
            yield document, brown.detokenise(words), last


def _classes(documents: list[brown.BrownDocument]) -> Iterator[tuple[str, str, str]]:
    """Of each sentence one word, of the class that has been asked for least."""
    asked = dict.fromkeys(CLASSES, 0)
    for document, sentence in _sentences(documents):
        words = [word for word, _ in sentence]
        known = [
            (asked[tag], word, tag)
            for word, tag in sentence
            if tag in CLASSES and words.count(word) == 1
        ]
        if known:
            _, word, tag = min(known)
            asked[tag] += 1
            yield document, f'"{word}" in "{brown.detokenise(words)}"', CLASSES[tag]


def _sentences(documents: list[brown.BrownDocument]) -> Iterator[tuple[str, brown.Sentence]]:
    every = [(d.name, sentence) for d in documents for sentence in d.sentences]
    return ((name, some) for name, some in _drawn(every) if len(some) in SIZES)


def _drawn(things: list) -> Iterator:
    """All of them in an order drawn once."""
    # random() alone is promised to give the same numbers in every Python.
    draw, left = random.Random(0).random, list(things)
    while left:
        i = int(len(left) * draw())
        left[i], left[-1] = left[-1], left[i]
        yield left.pop()
