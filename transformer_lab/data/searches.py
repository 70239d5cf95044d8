"""Loads searches for retrieval: queries, a collection of documents, and which of them fit."""

import hashlib
import json
from dataclasses import dataclass
from typing import NamedTuple

from transformer_lab.data.splits import (
    Item,
    Report,
    SourceConfig,
    Splits,
    finish,
    hold_out,
    read,
)
from transformer_lab.errors import LabError


class Search(NamedTuple):
    """A query, and the numbers of the documents that fit it, in the order of the collection."""

    query: str
    documents: tuple[int, ...]


class Library(NamedTuple):
    """A source's result: a title and a text of each document by its name; for each split queries
    with the names of the documents that fit them; and the licence."""

    documents: dict[str, tuple[str, str]]
    parts: dict[str, list[tuple[str, list[str]]]]
    licence: str


@dataclass(frozen=True)
class SearchesConfig(SourceConfig):
    """Settings of retrieval: the source, its files and languages, and which queries are held out.

    The collection is whole in every split; queries of one (first) document are in one split."""

    source: str = "libreoffice_help"  # libreoffice_help | boolq | files
    languages: str = "en-en"  # of the queries and of the documents, of libreoffice_help
    path: str = ""  # local copy of the set, or the user's folder
    validation_share: float = 0.02  # of the queries; splits that the source has stay as they are
    test_share: float = 0.1  # held out for the final scores
    max_queries: int = 0  # training queries at most (0 = all); held-out ones stay the same
    split_seed: int = 0  # another number holds out others

    KIND = "searches"

    def __post_init__(self):
        super().__post_init__()
        self.sides()

    def sides(self) -> tuple[str, str]:
        """The language of the queries and that of the documents."""
        parts = self.languages.split("-")
        if len(parts) != 2 or not all(parts):
            raise LabError(
                f'config.data.languages = "{self.languages}": give that of the queries and that of '
                'the documents, as "fr-en"'
            )
        return parts[0], parts[1]


@dataclass(frozen=True)
class Searches(Splits):
    """The searches of each split, and the collection: each document's name, and its text below
    its title."""

    names: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()

    def fingerprint(self) -> str:
        """A SHA-256 of the searches and of the collection."""
        whole = json.dumps([super().fingerprint(), self.documents])
        return hashlib.sha256(whole.encode()).hexdigest()


def load_searches(config: SearchesConfig) -> Searches:
    """The searches of a config, fetched when first used; the same for every run with it."""
    report = Report()
    library: Library = read(config, report)
    number = {name: i for i, name in enumerate(library.documents)}
    parts = {
        split: [
            Item(names[0], Search(query, tuple(number[name] for name in names)))
            for query, names in searches
        ]
        for split, searches in library.parts.items()
    }
    report["documents"] = len(number)
    parts["train"] = hold_out(parts, config, None)
    rows = {split: [item.row for item in some] for split, some in parts.items()}
    texts = tuple(
        f"{title}\n{text}" if title else text for title, text in library.documents.values()
    )
    name = lambda search: search.query  # noqa: E731
    more = {"licence": library.licence, "names": tuple(number), "documents": texts}
    return finish(Searches, rows, report, config, "max_queries", name, **more)
