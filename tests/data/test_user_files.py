"""What all readers of users' files share: names of splits, hidden and compressed files, JSON."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable

import pytest

from transformer_lab.data.contents import Plan, find_content, scanned
from transformer_lab.data.documents import DocumentsConfig, load_documents
from transformer_lab.data.labelled import LabelledConfig, load_labelled
from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.errors import LabError
from transformer_lab.text import TokenizerConfig

KEEP = {"validation_share": 0.0, "test_share": 0.0}
DEEP = "[" * 50_000


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
def test_a_json_file_of_json_lines_is_read_as_rows(read, row, tmp_path):
    file = tmp_path / "a.json"
    file.write_text("".join(json.dumps(row(text)) + "\n" for text in ("one", "two")))
    assert set(read(file)) == {"one", "two"}


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


@every_reader
def test_brackets_without_end_are_one_line(read, row, tmp_path):
    file = tmp_path / "a.jsonl"
    deep = json.dumps(row("one")).replace('"one"', DEEP + "]" * len(DEEP))
    for text, reason in ((DEEP, "nested too deeply"), (deep, "nested too deeply")):
        file.write_text(text)
        with pytest.raises(LabError, match=f"a.jsonl.*{reason}"):
            read(file)


@every_reader
def test_half_of_a_surrogate_pair_becomes_the_replacement_character(read, row, tmp_path):
    file = tmp_path / "a.jsonl"
    lines = [row("a \ud800 b"), row("\U0001f600"), row("\\ud800")]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert set(read(file)) == {"a \ufffd b", "\U0001f600", "\\ud800"}


@every_reader
def test_a_key_that_stands_twice_in_a_row_is_refused(read, row, tmp_path):
    line = json.dumps(row("one"))
    name = next(iter(row("one")))
    (tmp_path / "a.jsonl").write_text(line[:-1] + f', "{name}": "two"}}')
    with pytest.raises(LabError, match=f'not JSON .two keys of an object are "{name}"'):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize("name", ["val", "valid", "dev", "validation"])
def test_all_names_of_the_validation_split_are_one(name, tmp_path):
    for split, text in {"train": "one", name: "two", "test": "three"}.items():
        for kind, (_, row) in READERS.items():
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / f"{split}.jsonl").write_text(json.dumps(row(text)))
    found = load_pairs(PairsConfig("files", path=str(tmp_path / "pairs")))
    assert found.train == [("one", "one")] and found.validation == [("two", "two")]
    found = load_labelled(LabelledConfig("files", str(tmp_path / "labelled")))
    assert [row.text for row in found.validation] == ["two"]
    assert load_documents(DocumentsConfig("files", str(tmp_path / "documents"))).validation == [
        "two"
    ]
    plan = Plan(
        "language_modeling", DocumentsConfig("files", str(tmp_path / "prepared")), TokenizerConfig()
    )
    assert find_content(plan).held["validation"] == {"": [("two",)]}


def test_two_files_of_one_split_are_refused(tmp_path):
    for name in ("train", "val", "dev"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": name, "label": "x"}))
    with pytest.raises(LabError, match="both dev.jsonl and val.jsonl: it needs one .* validation"):
        labelled(tmp_path)


def test_hidden_texts_are_no_documents(tmp_path):
    for name in ("a.txt", "b/c.txt", "b/.d.txt", "b/.ipynb_checkpoints/e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert sorted(documents(tmp_path)) == ["a.txt", "b/c.txt"]
