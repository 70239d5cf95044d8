"""Text-to-text examples (Raffel 2020, section 2.4): inputs with a task's prefix, and targets."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from transformer_lab.data.documents import DocumentsConfig, load_documents
from transformer_lab.data.fetch import fetch
from transformer_lab.data.labelled import LabelledConfig, Question, load_labelled
from transformer_lab.data.parallel import PairsConfig, PairSplits, load_pairs
from transformer_lab.data.sentence_pairs import split_sentences
from transformer_lab.data.shards import Shards
from transformer_lab.data.sources import libreoffice_help
from transformer_lab.data.span_corruption import SpansConfig
from transformer_lab.data.splits import (
    SPLITS,
    Item,
    Report,
    Splits,
    both_texts,
    distinct,
    key,
    split_by_source,
)
from transformer_lab.errors import LabError, at_least, known

SPANS = "spans"  # the task without prefix, made of documents: see tasks.text_to_text
PREFIXES = {
    "translate": "translate English to French: ",
    "summarize": "summarize: ",
    "sentiment": "sentiment: ",
    "question": "question: ",
    "next_sentence": "next sentence: ",
}
_COMMON = 3  # a heading of more sections, such as "Syntax", does not summarise any


@dataclass(frozen=True)
class TextTasksConfig:
    """Settings of the mixture: its tasks, their rates, and the sources of their texts."""

    tasks: tuple[str, ...] = (*PREFIXES, SPANS)  # those that are mixed
    path: str = ""  # a prepared directory to read the training examples from
    limit: int = 0  # cap on a task's size when rates are computed (K in the paper); 0: none
    temperature: float = 1.0  # 1: examples-proportional; larger values mix more equally
    pairs_source: str = "catalogues"  # of translate: see data.parallel
    sentiment_source: str = "reviews"  # see data.labelled
    question_source: str = "spans"  # where questions come from
    documents_source: str = "brown"  # of next_sentence and spans: see data.documents
    held_out: int = 500  # most examples in each held-out split of a task
    max_words: int = 80  # most words of a section to summarize, or of two sentences together
    split_seed: int = 0  # another number holds out others
    spans: SpansConfig = field(default_factory=SpansConfig)

    def __post_init__(self):
        for name in self.tasks:
            known("config.data.tasks: ", name, TASKS)
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise LabError("config.data.tasks: name at least one task, and none twice")
        at_least(self, "config.data", 0, "held_out")
        at_least(self, "config.data", 1, "max_words")


def load_tasks(config: TextTasksConfig) -> dict[str, PairSplits]:
    """The pairs of each task in the config's order, fetched when first used; those of `spans` are
    (document, ""). Held-out splits are shuffled."""
    if config.path:
        shards = Shards(config.path)
        held = {
            name: [shards.held_out(split)[name] for split in SPLITS[1:]] for name in shards.parts
        }
        return {name: PairSplits([], *both, {}, shards.licence) for name, both in held.items()}
    found = {}
    for name in config.tasks:
        parts, report, licence = TASKS[name](config)
        prefix, cut = PREFIXES.get(name, ""), None if name == SPANS else config.held_out
        rows = [[(prefix + a, b) for a, b in parts[split]] for split in SPLITS]
        rows[1:] = [some[:cut] for some in rows[1:]]
        found[name] = PairSplits(*rows, report=report, licence=licence)
    return found


Loaded = tuple[dict[str, list[tuple[str, str]]], dict[str, int], str]  # splits, report, licence


def _texts_of(splits: Splits, pair: Callable = lambda row: row) -> Loaded:
    texts = {split: [pair(row) for row in getattr(splits, split)] for split in SPLITS}
    return texts, splits.report, splits.licence


def _translate(config: TextTasksConfig) -> Loaded:
    held, source = config.held_out, config.pairs_source
    pairs = PairsConfig(source, validation_size=held, test_size=held, split_seed=config.split_seed)
    return _texts_of(load_pairs(pairs))


def _summarize(config: TextTasksConfig) -> Loaded:
    """Sections of the help's pages, cut at `max_words`, with their headings as summaries."""
    folder = fetch(libreoffice_help.PACKAGES["en"])
    items = [
        Item(page, (" ".join(body.split()[: config.max_words]), heading))
        for page, heading, body in libreoffice_help.sections(folder)
    ]
    headings = Counter(key(item.row[1]) for item in items)
    telling = [item for item in items if headings[key(item.row[1])] <= _COMMON]
    report = Report(read=len(items), common_heading=len(items) - len(telling))
    telling, size = distinct(telling, both_texts, report), config.held_out
    parts = split_by_source(telling, size, size, config.split_seed, report)
    texts = {split: [item.row for item in part] for split, part in parts.items()}
    return texts, dict(report), libreoffice_help.LICENCE


def _labelled(source: str, config: TextTasksConfig) -> Splits:
    return load_labelled(LabelledConfig(source=source, split_seed=config.split_seed))


def _sentiment(config: TextTasksConfig) -> Loaded:
    return _texts_of(_labelled(config.sentiment_source, config), lambda row: (row.text, row.label))


def _question(config: TextTasksConfig) -> Loaded:
    def pair(row: Question) -> tuple[str, str]:
        answer = row.answers[0][0] if row.answers else ""
        return f"{row.question} context: {row.context}", answer

    return _texts_of(_labelled(config.question_source, config), pair)


def _documents(config: TextTasksConfig) -> Splits:
    return load_documents(DocumentsConfig(config.documents_source, split_seed=config.split_seed))


def _next_sentence(config: TextTasksConfig) -> Loaded:
    """Two sentences with "yes" if the second follows the first, else with "no"."""
    found = _documents(config)
    texts = {}
    for number, split in enumerate(SPLITS):
        draw = random.Random(config.split_seed * len(SPLITS) + number)
        texts[split] = list(_sentence_pairs(getattr(found, split), config.max_words // 2, draw))
        draw.shuffle(texts[split])
    return texts, found.report, found.licence


def _sentence_pairs(texts: list[str], words: int, draw: random.Random) -> Iterator[tuple[str, str]]:
    if len(texts) == 1:
        raise LabError("one document has no random next sentence: give more, or drop the task")
    whole = list(map(split_sentences, texts))
    for number, sentences in enumerate(whole):
        for first, second in pairwise(sentences):
            follows = draw.random() < 0.5
            if not follows:
                other = draw.randrange(len(texts) - 1)
                second = draw.choice(whole[other + (other >= number)] or [""])
            if max(len(first.split()), len(second.split())) <= words:
                yield f"{first} then: {second}", "yes" if follows else "no"


def _spans(config: TextTasksConfig) -> Loaded:
    return _texts_of(_documents(config), lambda text: (text, ""))


TASKS: dict[str, Callable[[TextTasksConfig], Loaded]] = {
    "translate": _translate,
    "summarize": _summarize,
    "sentiment": _sentiment,
    "question": _question,
    "next_sentence": _next_sentence,
    SPANS: _spans,
}
