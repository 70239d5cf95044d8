"""Sentences and their trees: expressions of Python, and what Link Grammar makes of Brown."""

import ast
import os

import pytest

from tests.data.test_brown import corpus
from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.data.sources import python_trees
from transformer_lab.errors import LabError

EXPRESSIONS = [  # tokens, and brackets by hand
    ("f ( x )", "(Call (Name XX) XX (Name XX) XX)"),
    ("( a + b ) * 2", "(BinOp XX (BinOp (Name XX) XX (Name XX)) XX XX (Constant XX))"),
    ("a . b [ 1 : ]",
     "(Subscript (Attribute (Name XX) XX XX) XX (Slice (Constant XX) XX) XX)"),
    ("g ( k = not v )", "(Call (Name XX) XX (keyword XX XX (UnaryOp XX (Name XX))) XX)"),
    ("[ i for i in s if i ]",
     "(ListComp XX (Name XX) XX (Name XX) XX (Name XX) XX (Name XX) XX)"),
    ("{ 'k' : v , ** d }", "(Dict XX (Constant XX) XX (Name XX) XX XX (Name XX) XX)"),
    ("x if y else z", "(IfExp (Name XX) XX (Name XX) XX (Name XX))"),
]  # fmt: skip


@pytest.mark.parametrize("tokens, brackets", EXPRESSIONS)
def test_trees_of_expressions_are_those_drawn_by_hand(tokens, brackets):
    assert python_trees.tree_of(tokens) == (tokens, brackets)


@pytest.mark.parametrize("text", ["x", "f('a b')", "f('é')", "f(f'{x}')", "yield x, y", "(a, *b)="])
def test_what_does_not_serve_is_left_out(text):
    assert python_trees.tree_of(text) is None


def test_a_folder_of_python_files_gives_its_outermost_expressions(tmp_path):
    (tmp_path / "a.py").write_text("x = f(1)\nif f(1):\n    return g(h(2), '''\n''')\n", "utf-8")
    (tmp_path / "bad.py").write_text("def (:\n", "utf-8")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "b.py").write_text("y = k(9)\n", "utf-8")
    (tmp_path / "c.py").write_text("y = k(3)\nz = q\n", "utf-8")
    sizes = {"validation_size": 0, "test_size": 0}
    found = load_pairs(PairsConfig(source="python_trees", path=str(tmp_path), **sizes))
    assert [source for source, _ in found.train] == ["f ( 1 )", "k ( 3 )"]
    assert {k: found.report[k] for k in ("duplicate", "length_or_form")} == {
        "duplicate": 1, "length_or_form": 4,
    }  # fmt: skip
    assert all(ast.parse(source, mode="eval") for source, _ in found.train)


# A program with link-parser's arguments, which knows the tree of what "sat".
PROGRAM = """#!/bin/sh
while read -r line; do
  case "$line" in
    *boom*) echo no dictionary >&2; exit 1;;
  esac
  echo "$line"; echo "Found 2 linkages"
  case "$line" in
    *sat*) echo "(S (NP it{!}) (VP sat.v-d (PP on.r (NP Mr..x 's.p))) .)"; echo "(S second)";;
    *) echo "No complete linkages found.";;
  esac
done
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The program above as the installed one, and an empty cache."""
    file = tmp_path / "bin" / "link-parser"
    file.parent.mkdir()
    file.write_text(PROGRAM, "utf-8")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{file.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TRANSFORMER_LAB_CACHE", str(tmp_path / "cache"))
    return file


def load(folder, *texts):
    """The pairs of a corpus with one document of these sentences."""
    lines = (" ".join(f"{word}/x" for word in text.split()) + "\n" for text in texts)
    corpus(folder, cats="ca01 news", ca01="".join(lines))
    sizes = {"validation_size": 0, "test_size": 0, "path": str(folder)}
    return load_pairs(PairsConfig(source="link_grammar", **sizes))


def test_the_parsers_first_tree_is_kept_and_its_words_are_the_sentence(program, tmp_path):
    texts = "It sat there .", "It was there .", "It sat there .", "He said 3 words .", "It sat ."
    found = load(tmp_path, *texts)
    assert found.train == [("it sat on Mr. 's .", "(S (NP XX) (VP XX (PP XX (NP XX XX))) PU)")]
    counts = ("length", "digits_or_symbols", "not_parsed")
    assert [found.report[name] for name in counts] == [1, 1, 1]
    program.write_text("#!/bin/false\n", "utf-8")  # all is in the cache
    (tmp_path / "again").mkdir()
    assert load(tmp_path / "again", *texts).fingerprint() == found.fingerprint()


def test_a_program_that_fails_is_one_line(program, tmp_path):
    with pytest.raises(LabError, match=r"link-parser does not parse \(no dictionary\): install"):
        load(tmp_path, "It went boom there .")
