"""Sentences of the Brown corpus with constituent trees by the parser Link Grammar (apt).

The trees are a program's, not a person's: what a model is scored by is its agreement with that
parser. They are made when first asked for, and kept in the cache."""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Sequence
from typing import Any

from transformer_lab.data.fetch import cache_dir, folders
from transformer_lab.data.programs import program
from transformer_lab.data.sources import brown
from transformer_lab.data.splits import Found, Item, Report
from transformer_lab.errors import LabError
from transformer_lab.terminal import waited

PACKAGES = ("link-grammar", "liblink-grammar5", "link-grammar-dictionaries-en", "libhunspell-1.7-0")
LICENCE = f"{brown.LICENCE}; the trees are made by Link Grammar (LGPL-2.1)"
FEWEST, MOST = 4, 20  # words of a sentence, with its punctuation
SETTINGS = ("-constituents=3", "-graphics=0", "-verbosity=1", "-limit=100", "-null=0", "-echo=1")
PART = 1000  # sentences that one process parses

_PLAIN = re.compile(r"[A-Z][A-Za-z ,'.-]*[.?!]")  # neither quotation marks, brackets nor digits
_LEAF = re.compile(r"(?<= )([^\s()]+?)(\{[!?~&]\})?(\.[a-z][a-z-]*)?(?=[ )])")


def pairs(config: Any, report: Report) -> Found:
    """The words of each sentence, and its tree: ("it sat .", "(S (NP XX) (VP XX) PU)").

    A leaf is XX, or PU for punctuation; the words are the parser's, which writes the first one
    small and divides "it's". Sentences that it does not parse whole are dropped."""
    documents = brown.read(*folders(config.path, brown.PACKAGE))
    groups: dict[str, str] = {}
    for document in documents:
        for sentence in document.sentences:
            text = brown.detokenise([word for word, _ in sentence])
            if not FEWEST <= len(sentence) <= MOST:
                report["length"] += 1
            elif not _PLAIN.fullmatch(text):
                report["digits_or_symbols"] += 1
            else:
                groups.setdefault(text, document.name)
    trees = _trees(list(groups))
    report["not_parsed"] += len(groups) - len(trees)
    items = [Item(groups[text], without_words(tree)) for text, tree in trees.items()]
    return Found({"train": items}, LICENCE)


def without_words(tree: str) -> tuple[str, str]:
    """The words of the parser's tree, and the tree with XX or PU in the place of each.

    "(S (NP it) (VP sat.v-d) .)" is "it sat ." and "(S (NP XX) (VP XX) PU)"."""
    words: list[str] = []

    def leaf(found: re.Match) -> str:
        words.append(found[1])
        return "XX" if any(map(str.isalnum, found[1])) else "PU"

    brackets = _LEAF.sub(leaf, tree)
    return " ".join(words), brackets


def _trees(texts: list[str]) -> dict[str, str]:
    """The parser's tree of each text that it parses, from the cache or made now."""
    digest = hashlib.sha256(json.dumps([SETTINGS, texts]).encode()).hexdigest()
    file = cache_dir() / f"link-grammar-{digest[:16]}.json"
    if file.is_file():
        return json.loads(file.read_text("utf-8"))
    trees: dict[str, str] = {}
    with program("link-parser", *PACKAGES) as (path, environment, files):
        language = next((str(f.parent) for f in files if f.name == "4.0.affix"), "en")
        for first in waited("parses sentences", range(0, len(texts), PART)):
            trees |= _parse([path, language], environment, texts[first : first + PART])
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(trees), "utf-8")
    part.rename(file)  # last, so that no file is incomplete
    return trees


def _parse(command: Sequence[str], environment: dict[str, str], texts: list[str]) -> dict[str, str]:
    """The first tree that the program prints after the echo of each text."""
    given = "\n".join([*texts, ""]).encode()
    done = subprocess.run([*command, *SETTINGS], input=given, capture_output=True, env=environment)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        reason = said[0] if said else f"exit code {done.returncode}"
        raise LabError(f"link-parser does not parse ({reason}): install link-grammar by apt-get")
    trees, expected = {}, iter([*texts, None])
    now, after = None, next(expected)
    for line in done.stdout.decode().splitlines():
        if line == after:
            now, after = after, next(expected)
        elif line.startswith("(") and now:
            trees.setdefault(now, line)
    return trees
