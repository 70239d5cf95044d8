"""What a trained model must beat on the same splits: baselines of tasks that name one of these.

A baseline yields (its name, the split, how many examples that has, scores by name)."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from transformer_lab.data import labelled, tfidf
from transformer_lab.data.series import load_series
from transformer_lab.errors import LabError, known
from transformer_lab.ops.forecasts import METHODS
from transformer_lab.ops.losses import perplexity
from transformer_lab.tasks import forecasting, scores
from transformer_lab.tasks.counted_tags import CountedTags
from transformer_lab.terminal import Waiting, waited
from transformer_lab.text import word_translation
from transformer_lab.text.ngram import NGram

Found = Iterator[tuple[str, str, int, dict[str, float]]]
Build = Callable[[], Any]  # makes the config's task, with its tokenizer
HELD_OUT = "validation", "test"
MOST = 10_000  # images, or pairs of sentences, that a baseline is trained on
LONGEST = 50  # words of a sentence that the dictionary is learned from


def texts(sections: dict[str, Any], build: Build, order: int) -> Found:
    """The most frequent class, and logistic regression on TF-IDF of words and pairs of words."""
    if sections["task"].regression:
        raise LabError("the baseline needs classes: task.regression has none")
    data, positive = labelled.load_labelled(sections["data"]), None
    if name := sections["task"].positive_label:
        positive = known("task.positive_label = ", name, data.labels)
    train, validation, test = map(columns, (data.train, data.validation, data.test))
    with Waiting("fits logistic regression"):
        fitted, strength = tfidf.logistic(train, validation)
    models = {"majority": tfidf.majority(train), f"TF-IDF, C = {strength:g}": fitted}
    for title, model in models.items():
        for split, (rows, gold) in zip(HELD_OUT, (validation, test), strict=True):
            if rows:
                guess = list(model.predict(rows))
                values = {"accuracy": scores.accuracy(gold, guess)}
                values |= {"f1": scores.f1(gold, guess, positive)}
                yield title, split, len(gold), values | {"matthews": scores.matthews(gold, guess)}


def columns(rows: list[labelled.LabelledRow]) -> tfidf.Rows:
    """The texts (the two of a sentence pair joined by a line break) and their classes."""
    for row in rows:
        if not (isinstance(row, labelled.Example) and isinstance(row.label, str)):
            raise LabError("the baseline needs texts with a class each: see config.data.source")
    return [f"{r.text}\n{r.pair}" if r.pair else r.text for r in rows], [r.label for r in rows]


def tags(sections: dict[str, Any], build: Build, order: int) -> Found:
    """The accuracy on words of each word's most frequent tag, and of a hidden Markov model."""
    data = labelled.load_labelled(sections["data"])
    counted = CountedTags(data.train)
    for name, title in ("commonest", "each word's own"), ("likeliest", "hidden Markov model"):
        for split in HELD_OUT:
            if rows := getattr(data, split):
                guess = getattr(counted, name)([row.words for row in rows])
                both = sum((row.tags for row in rows), []), sum(guess, [])
                yield title, split, len(both[0]), {"accuracy": scores.accuracy(*both)}


def forecasts(sections: dict[str, Any], build: Build, order: int) -> Found:
    """sMAPE and MASE of forecasts of each series from its own past alone."""
    data = load_series(sections["data"])
    for name, method in METHODS.items():
        for split in HELD_OUT:
            if windows := getattr(data, split):
                yield name, split, len(windows), forecasting.baseline(windows, method)


def images(sections: dict[str, Any], build: Build, order: int) -> Found:
    """The most frequent class, and logistic regression on the pixels of at most 10,000 images."""
    task = build()

    def arrays(split: str, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        part = task.examples(split)
        some = waited(f"reads images of {split}", [*range(len(part))][:most])
        rows = [part[i] for i in some]
        pixels = np.stack([row["image"] for row in rows]).reshape(len(rows), -1) / 255
        return pixels, np.array([row["label"] for row in rows])

    train = arrays("train", MOST)
    with Waiting("fits logistic regression"), tfidf.late():
        fitted = LogisticRegression(C=0.1, max_iter=200).fit(*train)
    often = np.bincount(train[1]).argmax()
    for split in HELD_OUT:
        if len(task.examples(split)):
            pixels, gold = arrays(split)
            for title, guess in ("majority", often), ("pixels", fitted.predict(pixels)):
                yield title, split, len(gold), {"accuracy": float((guess == gold).mean())}


def translation(sections: dict[str, Any], build: Build, order: int) -> Found:
    """The source itself, and a dictionary learned from at most 10,000 training pairs."""
    task = build()
    pairs = [task.examples("train")[i] for i in range(min(len(task.examples("train")), MOST))]
    with Waiting("learns a dictionary"):
        short = [pair for pair in pairs if max(len(x.split()) for x in pair) <= LONGEST]
        words = word_translation.train(short)
    for split in HELD_OUT:
        sources, targets = zip(*task.examples(split), strict=True)
        made = [word_translation.translate(words, source) for source in sources]
        for title, outputs in ("the source", list(sources)), ("dictionary", made):
            values, _ = scores.corpus_scores(outputs, list(targets))
            yield title, split, len(sources), values


def language(sections: dict[str, Any], build: Build, order: int) -> Found:
    """Interpolated Kneser-Ney n-grams of each order up to `order`, on the task's own tokens."""
    task = build()
    train, _ = task.encode_split("train")
    for number in waited("counts n-grams, by order", range(1, order + 1)):
        model = ngram(task, train, number)
        for split in HELD_OUT:
            documents, sizes = task.encode_split(split)
            nats, tokens, right = _score(model, documents)
            yield f"{number}-grams", split, len(documents), {
                "loss": nats / tokens, "perplexity": perplexity(nats / tokens),
                "bits_per_byte": nats / math.log(2) / sizes.sum(), "accuracy": right,
            }  # fmt: skip


def ngram(task: Any, train: list, order: int) -> NGram:
    """The n-gram model of the training documents in a language model's tokens."""
    tok = task.tokenizer
    return NGram.train(train, order, tok.vocab_size, tok.bos_id, tok.eos_id)


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
