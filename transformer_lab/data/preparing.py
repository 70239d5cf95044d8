"""Writes prepared directories (`data.shards`): in parallel, shard by shard, and on after a kill.

Files are read twice, part by part: once to choose what is held out and what the tokenizer is
trained on (`data.scanning`), and once to write tokens, a shard for each part. What `load_pairs`,
`load_documents` and `load_tasks` have in memory is written as it is, with their splits.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from transformer_lab import text
from transformer_lab.data import documents, parallel, text_tasks
from transformer_lab.data.indexing import write_index
from transformer_lab.data.pairs import key
from transformer_lab.data.processes import results
from transformer_lab.data.raw_files import Part, Row, find, parts_of, read
from transformer_lab.data.scanning import kept, scan
from transformer_lab.data.shards import PREPARED, TOKENIZER, settings, shard_name
from transformer_lab.data.user_files import LICENCE, SPLITS
from transformer_lab.errors import LabError, read_json

BEGUN = "begun.json"
SHARD = 64_000_000  # bytes of raw files that make a shard
ROWS = 100_000  # rows in memory that make a shard
BLOCKS = {"pairs": 16, "documents": 1}  # records of an ArrayRecord entry
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to prepare, and how. `given` is a tokenizer to use; without it, one is trained on a
    sample of at most about `sample` characters of the training rows."""

    task: str
    data: Any  # PairsConfig, DocumentsConfig or TextTasksConfig
    tokenizer: text.TokenizerConfig
    given: text.Tokenizer | None = None
    sample: int = 20_000_000
    workers: int = 1
    shard: int = SHARD

    @property
    def kind(self) -> str:
        return "documents" if isinstance(self.data, documents.DocumentsConfig) else "pairs"

    @property
    def names(self) -> Row:
        """The languages of pairs."""
        return self.data.sides() if isinstance(self.data, parallel.PairsConfig) else ()

    def asked(self) -> dict[str, Any]:
        """All that decides the content of the directory, save the source's own content."""
        tokenizer = self.given.config if self.given else self.tokenizer
        given = self.given.fingerprint() if self.given else None
        asked = {"data": asdict(self.data), "tokenizer": asdict(tokenizer), "given": given}
        return json.loads(json.dumps({**asked, "sample": self.sample, "shard": self.shard}))


@dataclass(frozen=True)
class Content:
    """A source: its training rows by part, as file parts or sequences in memory, and the rest."""

    train: dict[str, list[Part] | Sequence[Row]]
    files: list[list[Any]]  # name and bytes of each file
    held: dict[str, dict[str, list[Row]]]  # split, part
    report: dict[str, int]
    licence: str
    fingerprint: str
    sample: Iterable[Row]


def prepare(plan: Plan, folder: Path, say: Say) -> None:
    """Makes a prepared directory, or finishes one that was begun with the same settings.

    Raises: LabError for another directory's settings, files that changed, or bad content.
    """
    asked, begun = plan.asked(), folder / BEGUN
    if getattr(plan.data, "source", "shards") == "shards" and plan.data.path:
        raise LabError("the config reads a prepared directory: name the source of the data itself")
    if begun.exists():
        _refuse_other(folder, read_json(begun)["asked"], asked)
    if (folder / PREPARED).exists():
        return say(f"{folder} is prepared already")
    paths = find(plan.data.path, plan.kind) if _streams(plan) else None
    content = _in_memory(plan) if paths is None else None
    if not begun.exists():
        content = content or _scanned(plan, paths, say)
        _begin(plan, folder, content, asked)
    about = read_json(begun)
    train = (
        content.train
        if content
        else {"": [p for f in paths["train"] for p in parts_of(f, plan.shard)]}
    )
    files = _files(paths) if paths else []
    if files != about["files"] or content and content.fingerprint != about["content"]:
        raise LabError(f"the data is not what it was when {folder} was begun: use another --output")
    jobs = [(part, rows) for part, parts in train.items() for rows in _shards_of(parts)]
    todo = [
        i for i in range(len(jobs)) if not (folder / shard_name(i)).with_suffix(".json").exists()
    ]
    if len(todo) < len(jobs):
        say(f"goes on: {len(jobs) - len(todo)} of {len(jobs)} shards are there")
    calls = ((str(folder), i, jobs[i][1]) for i in todo)
    for done, records in enumerate(results(_write_shard, calls, plan.workers), 1):
        say(f"shard {len(jobs) - len(todo) + done} of {len(jobs)}: {records:,} records")
    _finish(plan, folder, about, [part for part, _ in jobs], list(train))
    say(f"{folder} is prepared")


def _refuse_other(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    for name in now:
        if before[name] != now[name]:
            old, new = before[name], now[name]
            if isinstance(old, dict) and isinstance(new, dict):
                name, old, new = next(
                    (f"config.{name}.{k}", old.get(k), new[k]) for k in new if old.get(k) != new[k]
                )
            raise LabError(
                f"{folder} was begun with {name} = {old!r}, this is {new!r}: use another --output"
            )


def _streams(plan: Plan) -> bool:
    return getattr(plan.data, "source", "") == "files" and bool(plan.data.path)


def _files(paths: dict[str, list[Path]]) -> list[list[Any]]:
    return [[str(f), f.stat().st_size] for files in paths.values() for f in files]


def _in_memory(plan: Plan) -> Content:
    """What the task itself would read."""
    if plan.kind == "documents":
        found = documents.load_documents(plan.data)
        rows = {split: [(t,) for t in getattr(found, split)] for split in SPLITS}
        # Neighbours in the stream are of different places in the source.
        order = np.random.default_rng(plan.data.split_seed).permutation(len(rows["train"]))
        rows["train"] = [rows["train"][i] for i in order]
        parts, fingerprint = {"": rows}, documents.fingerprint(found)
        report, licence = found.report, found.licence
    else:
        if isinstance(plan.data, parallel.PairsConfig):
            splits = {"": parallel.load_pairs(plan.data)}
        else:
            splits = text_tasks.load_tasks(plan.data)
        if text_tasks.SPANS in splits:
            raise LabError(
                f'the task "{text_tasks.SPANS}" hides other words each epoch and cannot be '
                "prepared: leave it out of config.data.tasks"
            )
        parts = {name: {s: getattr(found, s) for s in SPLITS} for name, found in splits.items()}
        fingerprint = " ".join(map(parallel.fingerprint, splits.values()))
        licence = "; ".join(dict.fromkeys(found.licence for found in splits.values()))
        report = sum((Counter(found.report) for found in splits.values()), Counter())
    report = {name: n for name, n in report.items() if name not in SPLITS}
    held = {s: {name: list(rows[s]) for name, rows in parts.items()} for s in SPLITS[1:]}
    train = {name: rows["train"] for name, rows in parts.items()}
    sample = _spaced(train, plan.sample)
    return Content(train, [], held, report, licence, fingerprint, sample)


def _spaced(train: dict[str, Sequence[Row]], characters: int) -> Iterator[Row]:
    """Rows at equal distances, of about so many characters; all of them if these are fewer."""
    for rows in train.values():
        some = [rows[i] for i in range(0, len(rows), max(1, len(rows) // 1000))]
        mean = sum(len(t) for row in some for t in row) / max(1, len(some))
        for i in range(0, len(rows), max(1, round(len(train) * len(rows) * mean / characters))):
            yield rows[i]


def _scanned(plan: Plan, paths: dict[str, list[Path]], say: Say) -> Content:
    """What a first reading of the files finds."""
    limit = getattr(plan.data, "max_pairs", 0) or getattr(plan.data, "max_documents", 0)
    if limit:
        raise LabError("config.data: a limit of the training set does not go with files: unset it")
    parts = [part for file in paths["train"] for part in parts_of(file, plan.shard)]
    own = {
        split: list(
            kept(
                chain(*(read(p, plan.kind, plan.names) for p in parts_of(f, plan.shard))),
                0,
                Counter(),
            )
        )
        for split in SPLITS[1:]
        for f in paths.get(split, [])
    }
    found = scan(parts, plan, own, say)
    held = {split: {"": rows} for split, rows in found.held.items()}
    return Content(
        {"": parts}, _files(paths), held, found.report, LICENCE, found.digest, found.sample
    )


def _begin(plan: Plan, folder: Path, content: Content, asked: dict[str, Any]) -> None:
    """The tokenizer, the held-out texts, and last the file that says that both are there."""
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    held = {key(row[0]) for rows in content.held.values() for part in rows.values() for row in part}
    tokenizer = plan.given or text.train(
        plan.tokenizer,
        (t for row in content.sample if key(row[0]) not in held for t in row),
    )
    text.save_dir(tokenizer, folder / TOKENIZER)
    for split in SPLITS[1:]:
        rows = ((part, *row) for part, rows in content.held[split].items() for row in rows)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        put(folder / f"{split}.jsonl", "".join(lines).encode())
    about = {
        "task": plan.task, "kind": plan.kind, "names": plan.names, "asked": asked,
        "files": content.files, "content": content.fingerprint, "report": content.report,
        "licence": content.licence, "tokenizer": tokenizer.fingerprint(),
        "dtype": "<u2" if tokenizer.vocab_size <= 2**16 else "<u4",
        "max_characters": getattr(plan.data, "max_characters", 0),
    }  # fmt: skip
    put(folder / BEGUN, json.dumps(about, indent=1).encode())


def put(path: Path, content: bytes) -> None:
    """The file is whole or it is not there."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.replace(part, path)


def _shards_of(rows: list[Part] | Sequence[Row]) -> Iterator[Part | Sequence[Row]]:
    if rows and isinstance(rows[0], Part):
        yield from rows
    else:
        for begin in range(0, len(rows), ROWS):
            yield rows[begin : begin + ROWS]


@cache
def _shared(folder: str) -> tuple[dict[str, Any], text.Tokenizer, set[str]]:
    """What all shards need: settings, tokenizer, and which sources are held out."""
    about = read_json(Path(folder) / BEGUN)
    lines = [
        line
        for split in SPLITS[1:]
        for line in (Path(folder) / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return about, text.load_dir(Path(folder) / TOKENIZER), {key(json.loads(x)[1]) for x in lines}


def _write_shard(folder: str, number: int, content: Part | Sequence[Row]) -> int:
    """Writes the records of a shard, their lengths, and last what counts as done."""
    from array_record.python.array_record_module import ArrayRecordWriter

    about, tokenizer, held = _shared(folder)
    report: Counter[str] = Counter()
    rows: Iterable[Row] = content
    if isinstance(content, Part):
        rows = read(content, about["kind"], tuple(about["names"]))
        rows = kept(rows, about["max_characters"], report)
        rows = _not_held(rows, held, report)
    path = Path(folder) / shard_name(number)
    part, lengths = path.with_suffix(".part"), []
    writer = ArrayRecordWriter(str(part), "group_size:1,uncompressed")
    for some in batched(_encoded(rows, tokenizer, about["kind"]), BLOCKS[about["kind"]]):
        lengths += [[len(ids) for ids in row] for row in some]
        ids = list(chain.from_iterable(chain.from_iterable(some)))
        writer.write(np.array(ids, about["dtype"]).tobytes())
    writer.close()
    os.replace(part, path)
    np.save(path.with_suffix(".npy"), np.array(lengths, np.uint32))
    done = {"records": len(lengths), "report": report}
    put(path.with_suffix(".json"), json.dumps(done).encode())
    return len(lengths)


def _not_held(rows: Iterable[Row], held: set[str], report: Counter[str]) -> Iterator[Row]:
    for row in rows:
        if key(row[0]) in held:
            report["held_out"] += 1
        else:
            yield row


def batched(items: Iterable[Any], count: int) -> Iterator[list[Any]]:
    """The items, so many at a time."""
    iterator = iter(items)
    while some := list(islice(iterator, count)):
        yield some


def _encoded(
    rows: Iterable[Row], tokenizer: text.Tokenizer, kind: str
) -> Iterator[list[list[int]]]:
    """Token ids of each row's texts; those of pairs with their start and end tokens."""
    for some in batched(rows, 256):
        columns = [tokenizer.encode_batch(column) for column in zip(*some, strict=True)]
        for row in zip(*columns, strict=True):
            yield (
                row
                if kind == "documents"
                else [[*tokenizer.start_ids, *ids, tokenizer.eos_id] for ids in row]
            )


def _finish(
    plan: Plan, folder: Path, about: dict[str, Any], part_of: list[str], parts: list[str]
) -> None:
    """The index over all shards, and last the file that says that the directory is whole."""
    shards = [folder / shard_name(i) for i in range(len(part_of))]
    done = [read_json(path.with_suffix(".json")) for path in shards]
    records = [shard["records"] for shard in done]
    if not sum(records):
        raise LabError(f"{folder}: no record is left to train on: hold out less, or give more data")
    fields = ("document",) if plan.kind == "documents" else ("source", "target")
    report = sum((Counter(shard["report"]) for shard in done), Counter(about["report"]))
    write_index(
        folder,
        [path.with_suffix(".npy") for path in shards],
        [parts.index(p) for p in part_of],
        plan.kind,
    )
    data, asked = settings(plan.data), about["asked"]
    whole = {
        "task": plan.task, "fields": fields, "parts": parts, "records": records,
        "block": BLOCKS[plan.kind], "dtype": about["dtype"],
        "report": {**report, "train": sum(records)}, "licence": about["licence"],
        "settings": {"data": data, "tokenizer": asked["tokenizer"]},
        "sample": plan.sample, "source": {"files": about["files"], "content": about["content"]},
        "tokenizer": about["tokenizer"],
    }  # fmt: skip
    identity = [whole[n] for n in ("task", "parts", "records", "settings", "source", "tokenizer")]
    identity = json.dumps(identity, sort_keys=True).encode()
    whole["fingerprint"] = hashlib.sha256(identity).hexdigest()
    put(folder / PREPARED, json.dumps(whole, indent=1).encode())
    for path in shards:
        path.with_suffix(".npy").unlink()
        path.with_suffix(".json").unlink()
