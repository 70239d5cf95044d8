"""Writes prepared directories (`data.shards`) in parallel, and resumes after being killed.

First come the files that all shards need: the held-out texts and the tokenizer (`data.contents`).
Then each shard is written by itself, and finally their index. Files only get their names when they
are complete, so that the same call continues where an earlier one stopped."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from transformer_lab import text
from transformer_lab.data.contents import Content, Plan, Say, find_content, kept, scanned
from transformer_lab.data.formats.records import Part, Texts, read
from transformer_lab.data.processes import results
from transformer_lab.data.shards import PREPARED, TOKENIZER, settings, shard_name
from transformer_lab.data.splits import SPLITS, key
from transformer_lab.errors import LabError, read_json

BEGUN = "begun.json"
BLOCKS = {"pairs": 16, "documents": 1}  # records in each ArrayRecord entry


def prepare(plan: Plan, folder: Path, say: Say) -> None:
    """Makes a prepared directory, or finishes one that was begun with the same settings.

    Raises: LabError for other settings, changed files, or invalid content."""
    begun = folder / BEGUN
    if begun.exists():
        _refuse_other(folder, read_json(begun)["asked"], plan.asked())
    if (folder / PREPARED).exists():
        say(f"{folder} is prepared already")
        return
    content = find_content(plan)
    if not begun.exists():
        _begin(plan, folder, scanned(plan, content, say) if content.files else content)
    about = read_json(begun)
    same = content.files or content.fingerprint == about["content"]
    if content.files != about["files"] or not same:
        raise LabError(f"the data is not what it was when {folder} was begun: use another --output")
    jobs = [(part, rows) for part, shards in content.train.items() for rows in shards]
    paths = [folder / shard_name(i) for i in range(len(jobs))]
    todo = [i for i, path in enumerate(paths) if not path.with_suffix(".json").exists()]
    there = len(jobs) - len(todo)
    if there:
        say(f"goes on: {there} of {len(jobs)} shards are there")
    rows = ((i, jobs[i][1]) for i in todo)
    # A lazy sequence is read here: the workers get rows, or a part of a file to read.
    calls = ((str(folder), i, x if isinstance(x, Part) else list(x)) for i, x in rows)
    for done, records in enumerate(results(_write_shard, calls, plan.workers), there + 1):
        say(f"shard {done} of {len(jobs)}: {records:,} records")
    numbers = [list(content.train).index(part) for part, _ in jobs]
    _finish(plan, folder, about, paths, list(content.train), numbers)
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


def _begin(plan: Plan, folder: Path, content: Content) -> None:
    """Writes the tokenizer, the held-out texts, and last the file that marks both as complete."""
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    held = {key(row[0]) for rows in content.held.values() for part in rows.values() for row in part}
    sample = (text_ for row in content.sample if key(row[0]) not in held for text_ in row)
    tokenizer = plan.given or text.train(plan.tokenizer, sample)
    text.save_dir(tokenizer, folder / TOKENIZER)
    for split in SPLITS[1:]:
        rows = ((part, *row) for part, rows in content.held[split].items() for row in rows)
        lines = [json.dumps(row) + "\n" for row in rows]
        put(folder / f"{split}.jsonl", "".join(lines).encode())
    about = {
        "task": plan.task, "kind": plan.kind, "names": plan.names, "asked": plan.asked(),
        "files": content.files, "content": content.fingerprint, "report": content.report,
        "licence": content.licence, "tokenizer": tokenizer.fingerprint(),
        "dtype": "<u2" if tokenizer.vocab_size <= 2**16 else "<u4",
        "max_characters": getattr(plan.data, "max_characters", 0),
    }  # fmt: skip
    put(folder / BEGUN, json.dumps(about, indent=1).encode())


def put(path: Path, content: bytes) -> None:
    """Writes a file under a temporary name and renames it, so that it is never incomplete."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.replace(part, path)


@cache
def _shared(folder: str) -> tuple[dict[str, Any], text.Tokenizer, set[str]]:
    """What all shards need: the settings, the tokenizer, and the held-out sources."""
    about = read_json(Path(folder) / BEGUN)
    lines = [
        line
        for split in SPLITS[1:]
        for line in (Path(folder) / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return about, text.load_dir(Path(folder) / TOKENIZER), {key(json.loads(x)[1]) for x in lines}


def _write_shard(folder: str, number: int, content: Part | Sequence[Texts]) -> int:
    """Writes a shard's records, then their lengths, and last the file that marks it as done."""
    from array_record.python.array_record_module import ArrayRecordWriter

    about, tokenizer, held = _shared(folder)
    report: Counter[str] = Counter()
    rows: Iterable[Texts] = content
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
    try:
        writer.close()
    except RuntimeError as error:  # a full disk
        raise LabError(f"{part} cannot be written: {str(error).splitlines()[0]}") from error
    os.replace(part, path)
    np.save(path.with_suffix(".npy"), np.array(lengths, np.uint32))
    done = {"records": len(lengths), "report": report}
    put(path.with_suffix(".json"), json.dumps(done).encode())
    return len(lengths)


def _not_held(rows: Iterable[Texts], held: set[str], report: Counter[str]) -> Iterator[Texts]:
    for row in rows:
        if key(row[0]) in held:
            report["held_out"] += 1
        else:
            yield row


def batched(items: Iterable[Any], count: int) -> Iterator[list[Any]]:
    """Lists of `count` items in order; the last may be shorter."""
    iterator = iter(items)
    while some := list(islice(iterator, count)):
        yield some


def _encoded(
    rows: Iterable[Texts], tokenizer: text.Tokenizer, kind: str
) -> Iterator[list[list[int]]]:
    """Token ids of each row's texts; those of pairs have their start and end tokens."""
    for some in batched(rows, 256):
        columns = [tokenizer.encode_batch(column) for column in zip(*some, strict=True)]
        for row in zip(*columns, strict=True):
            yield (
                row
                if kind == "documents"
                else [[*tokenizer.start_ids, *ids, tokenizer.eos_id] for ids in row]
            )


def _finish(
    plan: Plan,
    folder: Path,
    about: dict[str, Any],
    paths: list[Path],
    parts: list[str],
    numbers: list[int],
) -> None:
    """Writes the index of the shards of parts `numbers`, then marks the directory complete."""
    done = [read_json(path.with_suffix(".json")) for path in paths]
    records = [shard["records"] for shard in done]
    if not sum(records):
        raise LabError(f"{folder}: no record is left to train on: hold out less, or give more data")
    write_index(folder, [path.with_suffix(".npy") for path in paths], numbers, plan.kind)
    report = sum((Counter(shard["report"]) for shard in done), Counter(about["report"]))
    whole = {
        "task": plan.task, "parts": parts, "records": records,
        "fields": ("document",) if plan.kind == "documents" else ("source", "target"),
        "block": BLOCKS[plan.kind], "dtype": about["dtype"], "licence": about["licence"],
        "report": {**report, "train": sum(records)}, "sample": plan.sample,
        "settings": {"data": settings(plan.data), "tokenizer": about["asked"]["tokenizer"]},
        "source": {"files": about["files"], "content": about["content"]},
        "tokenizer": about["tokenizer"],
    }  # fmt: skip
    names = "task", "parts", "records", "settings", "source", "tokenizer"
    identity = json.dumps([whole[name] for name in names], sort_keys=True)
    whole["fingerprint"] = hashlib.sha256(identity.encode()).hexdigest()
    put(folder / PREPARED, json.dumps(whole, indent=1).encode())
    for path in paths:
        path.with_suffix(".npy").unlink()
        path.with_suffix(".json").unlink()


def write_index(folder: Path, files: list[Path], parts: list[int], kind: str) -> None:
    """Writes `lengths.npy`, `order.npy` and `cells.npy`, and for documents `ends.npy`.

    `files` hold the lengths of each shard's records, uint32 [records, fields]; `parts` says to
    which part each shard belongs. Records of one cell (same part and lengths) keep their order."""
    shapes = [np.load(file, mmap_mode="r").shape for file in files]
    count = sum(shape[0] for shape in shapes)
    fields = next(shape[1] for shape in shapes if shape[0])
    lengths = open_memmap(folder / "lengths.npy", "w+", np.uint32, (count, fields))
    begins = np.cumsum([0, *(shape[0] for shape in shapes)])
    ranges = [slice(a, b) for a, b in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)]
    longest = np.zeros(fields, np.int64)
    for file, rows in zip(files, ranges, strict=True):
        lengths[rows] = found = np.load(file).reshape(-1, fields)
        longest = np.maximum(longest, found.max(axis=0, initial=0))
    sizes = (max(parts) + 1, *(longest + 1).tolist())

    def keys(shard: int) -> np.ndarray:
        columns = lengths[ranges[shard]].astype(np.int64).T
        return np.ravel_multi_index((np.full(columns.shape[1], parts[shard]), *columns), sizes)

    cells, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for shard in range(len(files)):
        both = np.concatenate([cells, keys(shard)])
        weights = np.concatenate([counts, np.ones(len(both) - len(cells), np.int64)])
        cells, place = np.unique(both, return_inverse=True)
        counts = np.bincount(place, weights, len(cells)).astype(np.int64)
    part, *columns = np.unravel_index(cells, sizes)
    np.save(folder / "cells.npy", np.stack([part, counts, *columns], axis=1).astype(np.int64))
    _write_order(folder / "order.npy", count, keys, begins, cells, np.cumsum(counts) - counts)
    lengths.flush()
    if kind == "documents":
        ends = open_memmap(folder / "ends.npy", "w+", np.int64, (count + 1,))
        for rows in ranges:
            ends[rows.start + 1 : rows.stop + 1] = ends[rows.start] + np.cumsum(
                lengths[rows, 0].astype(np.int64) + 1
            )
        ends.flush()


def _write_order(path, count, keys, begins, cells, free) -> None:
    """Sorts the records by cell, keeping their order in it: a counting sort on disk.

    `free` is the position of the next record of each cell."""
    dtype = np.uint32 if count < 2**32 else np.int64
    order = open_memmap(path, "w+", dtype, (count,))
    for shard, begin in enumerate(begins[:-1].tolist()):
        found = np.searchsorted(cells, keys(shard))
        local = np.argsort(found, kind="stable")
        cell, first, many = np.unique(found[local], return_index=True, return_counts=True)
        within = np.arange(len(local)) - np.repeat(first, many)
        order[np.repeat(free[cell], many) + within] = begin + local
        free[cell] += many
    order.flush()
