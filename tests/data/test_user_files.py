"""The user's own files of every kind: formats, lines, splits of their own, what is refused."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.test_splits import everything
from transformer_lab.data.contents import Plan, find_content, scanned
from transformer_lab.data.documents import DocumentsConfig, load_documents
from transformer_lab.data.labelled import Example, LabelledConfig, load_labelled
from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.data.splits import remarks
from transformer_lab.errors import LabError
from transformer_lab.text import TokenizerConfig

KEEP = {"validation_share": 0.0, "test_share": 0.0}
SIDES = {"validation_share": 0.1, "test_share": 0.25}
DEEP = "[" * 50_000
PAIRS = [(f"the café {i}", f"le «café» n° {i}") for i in range(12)]
TEXTS = [f"The café number {i}\nis open." for i in range(12)]
ROWS = [(f'The "café" {i}, is open', ["yes", "no"][i % 2]) for i in range(12)]


def load_kind(kind: str, path, **settings):
    """The splits of users' pairs, documents or labelled rows."""
    if kind == "pairs":
        settings = {"validation_size": 1, "test_size": 3, **settings}
        return load_pairs(PairsConfig("files", path=str(path), **settings))
    if kind == "documents":
        return load_documents(DocumentsConfig("files", str(path), **{**SIDES, **settings}))
    return load_labelled(LabelledConfig("files", str(path), **{**SIDES, **settings}))


def write(file: Path, text: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return file


def tsv(pairs=PAIRS) -> str:
    return "".join(f"{a}\t{b}\n" for a, b in pairs)


def json_lines(names, rows) -> str:
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


def csv_text(rows=ROWS) -> str:
    cells = [(i, a.replace('"', '""'), b) for i, (a, b) in enumerate(rows)]
    return "id,text,label\n" + "".join(f'{i},"{a}",{b}\n' for i, a, b in cells)


def crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


PAIR_LINES = json_lines(("source", "target"), PAIRS)
DOCUMENT_LINES = json_lines(("text",), [(text,) for text in TEXTS])
ROW_LINES = json_lines(("text", "label"), ROWS)
BLOCKS = "\n\n \n".join([*TEXTS, ""])
FORMATS: list[tuple[str, dict[str, str], str]] = [  # kind, files, path
    ("pairs", {"a.tsv": tsv()}, "a.tsv"),
    ("pairs", {"a.txt": crlf(tsv())}, "a.txt"),
    ("pairs", {"a.tsv": "\ufeff" + tsv()}, "a.tsv"),
    ("pairs", {"a.jsonl": PAIR_LINES}, "a.jsonl"),
    ("pairs", {"a.jsonl": json_lines(("en", "fr"), PAIRS)}, "a.jsonl"),
    ("pairs", {"a.en": "\n".join(a for a, _ in PAIRS), "a.fr": "\n".join(b for _, b in PAIRS)},
     "a.en,a.fr"),
    ("documents", {"a.txt": BLOCKS}, "a.txt"),
    ("documents", {"a.txt": crlf(BLOCKS)}, "a.txt"),
    ("documents", {"a.txt": "\ufeff\n" + "\n\n".join(TEXTS)}, "a.txt"),
    ("documents", {"a.jsonl": DOCUMENT_LINES + "\n"}, "a.jsonl"),
    ("documents", {f"s/{i:02}.txt": text for i, text in enumerate(TEXTS)} | {"s/n.md": "no"}, "s"),
    ("labelled", {"a.csv": csv_text()}, "a.csv"),
    ("labelled", {"a.csv": "\ufeff" + crlf(csv_text()) + "\r\n"}, "a.csv"),
    ("labelled", {"a.tsv": "label\ttext\n" + tsv([row[::-1] for row in ROWS])}, "a.tsv"),
    ("labelled", {"a.jsonl": ROW_LINES + "\n"}, "a.jsonl"),
    ("labelled", {"a.jsonl": "\ufeff" + crlf(ROW_LINES)}, "a.jsonl"),
]  # fmt: skip
REFERENCE = {
    "pairs": (PAIR_LINES, sorted(PAIRS)),
    "documents": (DOCUMENT_LINES, sorted(TEXTS)),
    "labelled": (ROW_LINES, sorted(Example(a, None, b) for a, b in ROWS)),
}


@pytest.mark.parametrize("kind, files, path", FORMATS)
def test_every_format_gives_the_same_splits(kind, files, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        write(Path(name), text)
    lines, rows = REFERENCE[kind]
    splits = load_kind(kind, path)
    assert everything(splits) == rows
    assert splits.report == {"read": 12, "train": 8, "validation": 1, "test": 3}
    reference = load_kind(kind, write(Path("reference.jsonl"), lines))
    assert splits.fingerprint() == reference.fingerprint()
    if kind == "documents":
        assert splits.train == [text for text in TEXTS if text in splits.train]  # in order
    if kind == "labelled":
        assert splits.labels == ["no", "yes"]


@pytest.mark.parametrize(
    "kind, name, text, message",
    [
        ("pairs", "a.tsv", b"\xff\n", r"a.tsv:1: not UTF-8 \(byte 0xff at column 1\)"),
        ("pairs", "a.jsonl", b"\xff\n", r"a.jsonl:1: not UTF-8 \(byte 0xff at column 1\)"),
        ("pairs", "a.tsv", tsv().encode() + b"caf\xe9\tx\n",
         "a.tsv:13: not UTF-8 .*0xe9 at column 4"),
        ("pairs", "a.jsonl", PAIR_LINES.encode() + b"caf\xe9", "a.jsonl:13: not UTF-8 .*column 4"),
        ("pairs", "a.tsv", tsv() + "no tab\n",
         "a.tsv:13: expected source<TAB>target, found 1 field"),
        ("pairs", "a.tsv", tsv() + "a\tb\tc\n", "a.tsv:13: expected source<TAB>target, found 3"),
        ("pairs", "a.jsonl", PAIR_LINES + "{\n", "a.jsonl:13: not JSON"),
        ("pairs", "a.jsonl", PAIR_LINES + '["a", "b"]\n',
         'a.jsonl:13: .*strings "source" and "tar'),
        ("pairs", "a.jsonl", PAIR_LINES + '"a\\tb"\n',
         'a.jsonl:13: .*strings "source" and "target"'),
        ("pairs", "a.jsonl", PAIR_LINES + '{"source": "a"}\n', 'strings "source" and "target"'),
        ("pairs", "a.jsonl", '{"source": "a", "target": 3}\n', 'a.jsonl:1: .*or "en" and "fr"'),
        ("documents", "a.txt", b"{\ncaf\xe9\n", r"a.txt:2: not UTF-8 \(byte 0xe9 at column 4\)"),
        ("documents", "a.jsonl", b'{"text": "a"}\ncaf\xe9\n', "a.jsonl:2: not UTF-8 .*column 4"),
        ("documents", "s/00.txt", b"a\ncaf\xe9\n", "s/00.txt:2: not UTF-8 .*0xe9 at column 4"),
        ("documents", "a.jsonl", DOCUMENT_LINES + "\n{\n", "a.jsonl:14: not JSON"),
        ("documents", "a.jsonl", DOCUMENT_LINES + '["a"]', 'a.jsonl:13: .*a string "text"'),
        ("documents", "a.jsonl", DOCUMENT_LINES + '{"text": 3}', 'a.jsonl:13: .*a string "text"'),
        ("labelled", "a.csv", "txt,label\na,b\n",
         r'a.csv:2: no column "text" \(did you mean "txt"\?\); set'),
        ("labelled", "a.csv", "text,y\na,b\n",
         'a.csv:2: no column "label".*set config.data.label_column'),
        ("labelled", "a.csv", "text,label\n\na,b,c\n",
         "a.csv:3: 3 fields, but the header has 2 columns"),
        ("labelled", "a.csv", 'text,label\na,b\n"a,b\nc,d\n', "a.csv:3: a quote .* never closed"),
        ("labelled", "a.csv", 'text,label\na,b\n"a" b,c\n', "a.csv:3: malformed"),
        ("labelled", "a.csv", "text,label\n", "a.csv:1: no row follows the names of the columns"),
        ("labelled", "a.tsv", "", "a.tsv:1: no row follows"),
        ("labelled", "a.csv", "text,label\na, \n", 'a.csv:2: its "label" is empty'),
        ("labelled", "a.tsv", b"text\tlabel\na\tb\n\xe9\tb\n",
         r"a.tsv:3: not UTF-8 \(byte 0xe9 at column 1\)"),
        ("labelled", "a.jsonl", '{"text": "a", "label": 1}\n{', "a.jsonl:2: not JSON"),
        ("labelled", "a.jsonl", "[]\n", "a.jsonl:1: expected an object"),
        ("labelled", "a.jsonl", '{"text": 3, "label": 1}', 'a.jsonl:1: its "text" is 3, not text'),
        ("labelled", "a.jsonl", '{"text": "a", "label": null}',
         'a.jsonl:1: its "label" is null, not text'),
        ("labelled", "a.jsonl", '{"text": "a", "label": 1e999}',
         'a.jsonl:1: its "label" is Infinity, which'),
        ("labelled", "a.csv", "text,label\na,1.0\nb,-1e999\n",
         'a.csv:3: its "label" is -1e999, which is no'),
        ("labelled", "a.csv", "text,label,text\na,1,b\n",
         'a.csv:1: two columns are named "text": rename one'),
        ("labelled", "a.json", '[{"text": "a"}]',
         "a.json: a list, not the object .* write rows as JSON lines"),
        ("labelled", "a.xls", "", r"a.xls ends in none of \.csv, \.tsv, \.jsonl"),
        ("labelled", "a.conll", "EU B-ORG\nnews\n",
         "a.conll:2: expected a word and its tag in 2 columns"),
        ("labelled", "a.conll", b"EU O\n\xff O\n", "a.conll:2: not UTF-8"),
        ("labelled", "a.json", '{"data": [{}]}',
         r"a.json: not in SQuAD's format \(KeyError\('paragraphs'\)\)"),
        ("labelled", "a.json", '{"data":\n', "a.json: not JSON"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_with_its_line(kind, name, text, message, tmp_path):
    file = write(tmp_path / name, text)
    with pytest.raises(LabError, match=message):
        load_kind(kind, file.parent if "/" in name else file)


def test_only_a_line_feed_ends_a_line(tmp_path):
    odd = [(f"a\u2028b\x0cc\x85{i}", f"d\x1ce{i}") for i in range(6)]
    assert everything(load_kind("pairs", write(tmp_path / "a.tsv", tsv(odd)))) == sorted(odd)
    files = [
        write(tmp_path / f"{side}.txt", "\n".join(column))
        for side, column in zip("ab", zip(*odd, strict=True), strict=True)
    ]
    assert everything(load_kind("pairs", ",".join(map(str, files)))) == sorted(odd)
    write(files[1], "un\ndeux\n")
    with pytest.raises(LabError, match=r"a\.txt:3: no line of .*b\.txt faces it \(6 and 2 lines\)"):
        load_kind("pairs", ",".join(map(str, files)))
    with pytest.raises(LabError, match="6 pairs are too few: config.data.validation_size = 9"):
        load_kind("pairs", tmp_path / "a.tsv", validation_size=9, test_size=9)


def test_blank_and_repeated_lines_are_dropped_and_counted(tmp_path):
    text = tsv([*PAIRS, PAIRS[0], ("alone", "")])
    splits = load_kind("pairs", write(tmp_path / "a.tsv", "\n" + text + "\n"))
    assert everything(splits) == sorted(PAIRS)
    assert (splits.report["empty"], splits.report["duplicate"]) == (3, 1)
    assert splits.report["read"] == sum(n for name, n in splits.report.items() if name != "read")
    texts = [*TEXTS, *(text.upper().replace("\n", "  ") for text in TEXTS), "", " \n"]
    file = write(tmp_path / "a.jsonl", json_lines(("text",), [(text,) for text in texts]))
    splits = load_kind("documents", file, validation_share=0.4, test_share=0.4)
    assert everything(splits) == sorted(TEXTS)
    counts = dict(splits.report)
    assert counts.pop("read") == 26 == sum(counts.values())
    assert (counts["duplicate"], counts["empty"]) == (12, 2)


@pytest.mark.parametrize("end", [".tsv", ".jsonl"])
def test_a_folder_keeps_the_users_own_pairs(end, tmp_path):
    long = ("x" * 300, "y")
    parts = {
        "train": [*PAIRS[:5], PAIRS[0], long],
        "validation": PAIRS[4:8],
        "test": [long, PAIRS[9]],
    }
    for split, pairs in parts.items():
        lines = tsv(pairs) if end == ".tsv" else json_lines(("source", "target"), pairs)
        write(tmp_path / (split + end), lines)
    splits = load_kind("pairs", tmp_path)
    assert splits.train == PAIRS[:5]
    assert (splits.validation, splits.test) == (parts["validation"], parts["test"])
    assert (splits.report["duplicate"], splits.report["too_long"]) == (1, 1)
    (tmp_path / f"test{end}").unlink()
    with pytest.raises(LabError, match="has neither test.tsv nor test.jsonl"):
        load_kind("pairs", tmp_path)


@pytest.mark.parametrize("kind", ["folders", "files"])
def test_a_folder_keeps_the_users_own_documents(kind, tmp_path):
    parts = {
        "train": [*TEXTS[:6], TEXTS[0]],
        "validation": [TEXTS[4].upper(), TEXTS[7]],
        "test": [TEXTS[8], TEXTS[8]],
    }
    for split, texts in parts.items():
        for i, text in enumerate(texts if kind == "folders" else ()):
            write(tmp_path / split / f"{i}.txt", text)
        if kind == "files":
            write(tmp_path / f"{split}.jsonl", json_lines(("text",), [(t,) for t in texts]))
    write(tmp_path / ".hidden/a.txt", "no document")
    documents = load_kind("documents", tmp_path)
    assert documents.train == [*TEXTS[:4], TEXTS[5]]
    assert (documents.validation, documents.test) == (parts["validation"], parts["test"])
    assert documents.report["in_another_split"] == documents.report["duplicate"] == 1
    write(tmp_path / "valid.txt", "misspelt")
    with pytest.raises(LabError, match="valid.txt.*: for splits of your own, train, validation"):
        load_kind("documents", tmp_path)


def test_a_split_that_the_user_does_not_give_is_held_out_of_training(tmp_path):
    write(tmp_path / "train.txt", "\n\n".join(TEXTS[:8]))
    write(tmp_path / "test.txt", TEXTS[9])
    documents = load_kind("documents", tmp_path)
    assert (documents.test, len(documents.validation)) == ([TEXTS[9]], 1)
    assert sorted(documents.train + documents.validation) == TEXTS[:8]
    (tmp_path / "train.txt").unlink()
    with pytest.raises(LabError, match="holds test.txt: for splits of your own, train"):
        load_kind("documents", tmp_path)


# What all readers share.


def pairs(path) -> list[str]:
    found = load_pairs(PairsConfig("files", path=str(path), validation_size=0, test_size=0))
    return [text for pair in found.train for text in pair]


def labelled(path) -> list[str]:
    return [row.text for row in load_labelled(LabelledConfig("files", str(path), **KEEP)).train]


def documents(path) -> list[str]:
    return load_documents(DocumentsConfig("files", str(path), **KEEP)).train


def prepared(path) -> list[str]:
    """The documents that the command prepare would tokenise."""
    plan = Plan("language_modeling", DocumentsConfig("files", str(path), **KEEP), TokenizerConfig())
    content = scanned(plan, find_content(plan), lambda _: None)
    return [text for (text,) in content.sample]


READERS: dict[str, tuple[Callable, Callable]] = {  # a reader, and a row of JSON with a text
    "pairs": (pairs, lambda text: {"source": text, "target": text}),
    "labelled": (labelled, lambda text: {"text": text, "label": "x"}),
    "documents": (documents, lambda text: {"text": text}),
    "prepared": (prepared, lambda text: {"text": text}),
}
every_reader = pytest.mark.parametrize("read, row", READERS.values(), ids=READERS)


@every_reader
def test_json_is_read_and_refused_alike_by_every_reader(read, row, tmp_path):
    file = tmp_path / "a.json"  # of JSON lines, as .jsonl
    file.write_text("".join(json.dumps(row(text)) + "\n" for text in ("one", "two")))
    assert set(read(file)) == {"one", "two"}
    file = tmp_path / "a.jsonl"  # half of a surrogate pair becomes the replacement character
    lines = [row("a \ud800 b"), row("\U0001f600"), row("\\ud800")]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert set(read(file)) == {"a \ufffd b", "\U0001f600", "\\ud800"}
    line, name = json.dumps(row("one")), next(iter(row("one")))
    for text, reason in (
        (DEEP, "nested too deeply"),
        (line.replace('"one"', DEEP + "]" * len(DEEP)), "nested too deeply"),
        (line[:-1] + f', "{name}": "two"}}', f'not JSON .two keys of an object are "{name}"'),
    ):
        file.write_text(text)
        with pytest.raises(LabError, match=f"a.jsonl.*{reason}"):
            read(file)


@every_reader
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_file_is_refused_as_that(read, row, pack, tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_bytes(pack(json.dumps(row("one")).encode()))
    with pytest.raises(LabError, match=r"train.jsonl is compressed \(\w+\): unpack it first"):
        read(file)
    file.rename(tmp_path / "train.jsonl.gz")
    with pytest.raises(LabError, match="train.jsonl.gz is compressed: unpack it first"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["val", "valid", "dev", "validation"])
def test_all_names_of_the_validation_split_are_one(name, tmp_path):
    for split, text in {"train": "one", name: "two", "test": "three"}.items():
        for kind, (_, row) in READERS.items():
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / f"{split}.jsonl").write_text(json.dumps(row(text)))
    found = load_kind("pairs", tmp_path / "pairs")
    assert found.train == [("one", "one")] and found.validation == [("two", "two")]
    assert load_kind("labelled", tmp_path / "labelled").validation == [Example("two", None, "x")]
    assert load_kind("documents", tmp_path / "documents").validation == ["two"]
    data = DocumentsConfig("files", str(tmp_path / "prepared"))
    content = find_content(Plan("language_modeling", data, TokenizerConfig()))
    assert content.held["validation"] == {"": [("two",)]}


def test_two_files_of_one_split_are_refused_and_hidden_ones_passed_over(tmp_path):
    for name in ("train", "val", "dev"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": name, "label": "x"}))
    with pytest.raises(LabError, match="both dev.jsonl and val.jsonl: it needs one .* validation"):
        labelled(tmp_path)
    for name in ("a.txt", "b/c.txt", "b/.d.txt", "b/.ipynb_checkpoints/e.txt"):
        write(tmp_path / "texts" / name, name)
    assert sorted(documents(tmp_path / "texts")) == ["a.txt", "b/c.txt"]


def test_of_few_pairs_a_tenth_is_held_out_unless_a_size_is_given(tmp_path):
    path = write(tmp_path / "a.tsv", tsv([(f"a{i}", f"b{i}") for i in range(200)]))
    config = PairsConfig("files", path=str(path))
    report = load_pairs(config).report
    assert report == {"read": 200, "train": 160, "validation": 20, "test": 20}
    said = remarks(report, config)
    assert "config.data.test_size = 500 is over a tenth of your pairs: 20 are held out" in said
    asked = PairsConfig("files", path=str(path), validation_size=50, test_size=0)
    assert load_pairs(asked).report == {"read": 200, "train": 150, "validation": 50, "test": 0}
    assert remarks(load_pairs(asked).report, asked) == []
