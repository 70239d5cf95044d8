"""The user's own texts: pairs, documents, labelled rows or searches in the formats of
`data.formats`."""

from pathlib import Path
from typing import Any

from transformer_lab.data.formats import beir, conll, conllu, dialogues, squad, stamped, tables
from transformer_lab.data.formats.lines import (
    JSON_LINES,
    LICENCE,
    lines,
    split_files,
    split_of,
    visible,
)
from transformer_lab.data.formats.records import Texts, read_whole
from transformer_lab.data.labelled import Example
from transformer_lab.data.searches import Library
from transformer_lab.data.splits import SPLITS, Found, Item, Report, key
from transformer_lab.data.spoken import Spoken
from transformer_lab.errors import LabError

_TABLES = (".csv", ".tsv", ".jsonl")
_COLUMNS = (".conll", ".bio", ".iob", ".iob2", ".txt")
_LABELLED = (*_TABLES, *_COLUMNS, ".conllu", ".json")


def own_path(config: Any, what: str = "your file or folder") -> Path:
    """The path of a config. Raises: LabError if it is empty, which says what to give."""
    if not config.path:
        raise LabError(f'config.data.source = "{config.source}" needs config.data.path: {what}')
    return Path(config.path).expanduser()


def pairs(config: Any, report: Report) -> Found:
    """One file (JSON lines, else TSV), two parallel ones ("a.en,a.fr"), or a folder with a .tsv or
    .jsonl file for each split."""
    path, names = own_path(config, "your file or files"), config.sides()
    if not path.is_dir():
        rows = _pairs(path, names)
        items = [Item(key(text), (text, translation)) for text, translation in rows]
        parts = {"train": items}
    else:
        files = split_files(path, (".tsv", *JSON_LINES))
        if missing := [split for split in SPLITS if split not in files]:
            absent = f"neither {missing[0]}.tsv nor {missing[0]}.jsonl"
            raise LabError(f"{path} has {absent}: it needs one of them")
        parts = {split: list(read_whole(files[split], "pairs", names)) for split in SPLITS}
        parts["train"] = [Item("", pair) for pair in parts["train"]]
    return Found(parts, LICENCE)


def _pairs(path: Path, names: Texts) -> list[Texts]:
    if path.is_file():
        return list(read_whole(path, "pairs", names))
    files = [Path(part.strip()).expanduser() for part in str(path).split(",")]
    if len(files) != 2:
        raise LabError(
            f"config.data.path: no file {path}; give FILE.tsv, FILE.jsonl or A.txt,B.txt"
        )
    sides = [[line for _, line in lines(file)] for file in files]
    counts = list(map(len, sides))
    if counts[0] != counts[1]:
        longer, shorter = files if counts[0] > counts[1] else files[::-1]
        raise LabError(
            f"{longer}:{min(counts) + 1}: no line of {shorter} faces it "
            f"({counts[0]} and {counts[1]} lines)"
        )
    return list(zip(*sides, strict=True))


def documents(config: Any, report: Report) -> Found:
    """A folder of .txt files, JSON lines, text with blank lines between documents, or a folder with
    one of these for each split."""
    path, kinds = own_path(config), (".txt", *JSON_LINES)
    entries = visible(path, "*", kinds) if path.is_dir() else []
    named = [entry for entry in entries if entry.is_dir() or entry.suffix in kinds]
    names = [split_of(entry.stem) for entry in named]
    if not set(names) & set(SPLITS):
        names, named = ["train"], [path]
    if "train" not in names or set(names) - set(SPLITS) or len(set(names)) < len(names):
        raise LabError(
            f"{path} holds {', '.join(entry.name for entry in named)}: for splits of your own, "
            "train, validation and test, each a folder, .txt or .jsonl, and nothing else"
        )
    splits = zip(names, named, strict=True)
    return Found({name: [Item(t, t) for t in _texts(entry)] for name, entry in splits}, LICENCE)


def _texts(path: Path) -> list[str]:
    if not path.is_dir():
        return [text for (text,) in read_whole(path, "documents")]
    files = [file for file in visible(path, kinds=".txt") if file.suffix == ".txt"]
    if not files:
        raise LabError(f"config.data.path: no .txt file in {path}")
    return ["\n".join(line for _, line in lines(file)) for file in files]


def labelled(config: Any, report: Report) -> Found:
    """Tables, columns of words, trees, or questions: a file for each split, or only for `train`."""
    parts = {split: _labelled(file, config) for split, file in _paths(config).items()}
    rows = [item.row for part in parts.values() for item in part]
    if len(set(map(type, rows))) > 1:
        raise LabError(f"{config.path} holds files of several formats: give all splits the same")
    if rows and isinstance(rows[0], Example):
        _set_labels(parts, iter(tables.values([row.label for row in rows])))
    return Found(parts, LICENCE)


def _labelled(file: Path, config: Any) -> list[Item]:
    if file.suffix in _TABLES or file.suffix == ".json" and tables.holds_rows(file):
        return tables.read(file, config.text_column, config.pair_column, config.label_column)
    if file.suffix in _COLUMNS:
        return conll.read(file, config.text_column, config.label_column)
    if file.suffix == ".conllu":
        return conllu.read(file)
    if file.suffix == ".json":
        return squad.read(file)
    raise LabError(f"config.data.path: {file} ends in none of {', '.join(_LABELLED)}")


def _set_labels(parts: dict[str, list[Item]], values: Any) -> None:
    """Makes labels numbers if all are numbers in all splits; else the classes become strata."""
    for split, part in parts.items():
        parts[split] = [item._replace(row=item.row._replace(label=next(values))) for item in part]
    first: dict[str, str] = {}  # the class of each group, as groups are not divided
    for item in parts["train"]:
        first.setdefault(item.group, item.row.label if isinstance(item.row.label, str) else "")
    parts["train"] = [item._replace(stratum=first[item.group]) for item in parts["train"]]


def _paths(config: Any) -> dict[str, Path]:
    path = own_path(config)
    if not path.is_dir():
        return {"train": path}
    files = split_files(path, _LABELLED)
    if "train" not in files or set(files) - set(SPLITS):
        names = ", ".join(file.name for file in files.values())
        raise LabError(
            f"{path} holds {names or 'no data file'}: it "
            "needs one file each for train and, if you have them, validation and test"
        )
    return files


def spoken(config: Any, report: Report) -> Found:
    """Tables of audio files and their texts: one for each split, or only for `train`."""
    parts = {}
    for split, file in _paths(config).items():
        parts[split] = []
        for where, row in tables.rows(file):
            name, text = (
                tables.cell(row, column, role, where).strip()
                for role, column in (("audio", config.audio_column), ("text", config.text_column))
            )
            parts[split].append(Item(key(text), Spoken(str(file.parent / name), text, name)))
    return Found(parts, LICENCE)


def searches(config: Any, report: Report) -> Library:
    """A folder with documents, queries and which fit which, in BEIR's format."""
    return beir.read(own_path(config, "your folder"))


def instructions(config: Any, report: Report) -> Found:
    """JSON lines of instructions: one file for each split, or only for `train`."""
    return _dialogues(config, False)


def preferences(config: Any, report: Report) -> Found:
    """Conversations with a preferred and a rejected answer, from a user's file or folder."""
    return _dialogues(config, True)


def _dialogues(config: Any, pairs: bool) -> Found:
    parts = {split: dialogues.read(file, pairs) for split, file in _paths(config).items()}
    return Found(parts, LICENCE)


def series(config: Any, report: Report) -> Found:
    """Series in one table, wide or long; see `data.formats.stamped`."""
    if config.frequency:
        raise LabError("config.data.frequency chooses among the series of a set: unset it")
    file = own_path(config, "a .csv, .tsv or .jsonl file of series")
    return Found({"train": stamped.read(file, config, report)}, LICENCE)


def place_of(row: Example, split: str, config: Any) -> str:
    """The location of a row in the user's tables, as "file:line: "; "" for other sources."""
    if config.source == "files":
        files = _paths(config)
        for where, cells in tables.rows(files.get(split, files["train"])):
            if cells[config.text_column] == row.text:
                label = row.label  # a label of a regression is compared as a number
                if label is not None:
                    text = tables.cell(cells, config.label_column, "label", where).strip()
                    label = text if isinstance(label, str) else float(text)
                if label == row.label:
                    return f"{where}: "
    return ""
