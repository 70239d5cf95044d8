"""Retrieval sets in the format of BEIR (Thakur 2021), as most public ones are published.

corpus.jsonl      {"_id": "d1", "title": "Zebra", "text": "An animal ..."}
queries.jsonl     {"_id": "q1", "text": "striped animals"}
qrels/train.tsv   query-id <tab> corpus-id <tab> score, with a line of these names first
"""

from pathlib import Path

from transformer_lab.data.formats.lines import LICENCE, lines, parse_json, split_files
from transformer_lab.data.searches import Library
from transformer_lab.errors import LabError, check_file


def read(folder: Path) -> Library:
    """The documents, and for each file of qrels/ the queries with their documents of a score above
    0. Raises: LabError with the file and line of a row of another form, or of an unknown id."""
    documents = _texts(folder / "corpus.jsonl")
    queries = _texts(folder / "queries.jsonl")
    files = split_files(folder / "qrels", (".tsv",))
    if "train" not in files:
        raise LabError(f"{folder}: qrels/train.tsv is missing, which says what fits each query")
    parts = {}
    for split, file in files.items():
        found: dict[str, list[str]] = {}
        for where, line in list(lines(file))[1:]:
            if not line.strip():
                continue
            cells = line.split("\t")
            if len(cells) != 3 or not cells[2].strip().lstrip("-").isdigit():
                raise LabError(f"{where}: expected query-id, corpus-id and a whole score, by tabs")
            for name, known, file_name in zip(cells, (queries, documents), _FILES, strict=False):
                if name not in known:
                    raise LabError(f"{where}: {file_name} has no {name}")
            if int(cells[2]) > 0:
                found.setdefault(cells[0], []).append(cells[1])
        parts[split] = [(queries[name][1], names) for name, names in found.items()]
    return Library(documents, parts, LICENCE)


_FILES = ("queries.jsonl", "corpus.jsonl")


def _texts(file: Path) -> dict[str, tuple[str, str]]:
    """The title ("" if there is none) and the text of each id of a file."""
    found = {}
    for where, line in lines(check_file(file)):
        if line.strip():
            row = parse_json(line, where)
            row = row if isinstance(row, dict) else {}
            name, title, text = (row.get(key, "") for key in ("_id", "title", "text"))
            if not name or not all(isinstance(x, str) for x in (name, title, text)):
                raise LabError(f'{where}: expected an object with the texts "_id" and "text"')
            if name in found:
                raise LabError(f'{where}: a second row has the "_id" {name}')
            found[name] = title, text
    return found
