"""A prepared directory: tokens in ArrayRecord shards with an index, for random access.

`data.preparing` writes it. The files of the index are memory-mapped, so that the memory of a run
does not grow with the data:

- `lengths.npy`, uint32 [records, fields]: tokens in each record's fields;
- `order.npy`, uint64 [records]: record numbers, grouped by part and lengths;
- `cells.npy`, int64 [cells, 2 + fields]: part, count and lengths of each such group, in order;
- `ends.npy`, uint64 [records + 1], for documents: where each ends in the stream of all of them,
  with an end token after each.

A shard's ArrayRecord entry holds `block` records in a row, each with the tokens of its fields."""

import json
import threading
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Int64

from transformer_lab import text
from transformer_lab.data.ragged import Ragged
from transformer_lab.errors import LabError, read_json

PREPARED = "prepared.json"
TOKENIZER = "tokenizer"
# Settings of config.data that say where the data is, not what it is.
LOCATION = ("source", "path")


class Shards:
    """The records of a prepared directory, numbered from 0; safe to read from several threads."""

    def __init__(self, path: str | Path):
        self.folder = Path(path).expanduser()
        if not path or not (self.folder / PREPARED).is_file():
            raise LabError(
                f'config.data.path = "{path}" is no prepared directory (no {PREPARED}): make it, '
                f"or finish it, by python -m transformer_lab prepare --output={path or 'DIR'}"
            )
        self.about = read_json(self.folder / PREPARED)
        self.fields: tuple[str, ...] = tuple(self.about["fields"])
        self.report: dict[str, int] = self.about["report"]
        self.licence: str = self.about["licence"]
        self.fingerprint: str = self.about["fingerprint"]
        self.parts: tuple[str, ...] = tuple(self.about["parts"])
        self.lengths = np.load(self.folder / "lengths.npy", mmap_mode="r")
        self.order = np.load(self.folder / "order.npy", mmap_mode="r")
        cells = np.load(self.folder / "cells.npy")
        self.cell_parts, self.counts, self.cells = cells[:, 0], cells[:, 1], cells[:, 2:]
        self._starts = np.cumsum([0, *self.about["records"]])
        self._readers: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def ends(self) -> Int[np.ndarray, "records_and_one"]:
        """The stream position after each document's end token, with 0 in front."""
        return np.load(self.folder / "ends.npy", mmap_mode="r")

    def records_of_parts(self) -> Int64[np.ndarray, "parts"]:
        """The number of records in each part; the records of a part are consecutive."""
        return np.bincount(self.cell_parts, self.counts, len(self.parts)).astype(np.int64)

    def part_of(self, ids: Int64[np.ndarray, "rows"]) -> Int64[np.ndarray, "rows"]:
        """The number, from 0, of the part that each record belongs to."""
        return np.searchsorted(np.cumsum(self.records_of_parts()), ids, "right")

    def tokenizer(self) -> text.Tokenizer:
        return text.load_dir(self.folder / TOKENIZER)

    def held_out(self, split: str) -> dict[str, list[tuple[str, ...]]]:
        """The texts of the split "validation" or "test", by the name of their part."""
        found: dict[str, list[tuple[str, ...]]] = {part: [] for part in self.parts}
        for line in (self.folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines():
            part, *texts = json.loads(line)
            found[part].append(tuple(texts))
        return found

    def take(self, ids: Int64[np.ndarray, "rows"]) -> dict[str, Ragged]:
        """The tokens of the records `ids`, in that order, by field; a record may come twice."""
        shards = np.searchsorted(self._starts, ids, "right") - 1
        block, width = self.about["block"], len(self.fields)
        first = ids - (ids - self._starts[shards]) % block  # the first record of its entry
        before = first[:, None] + np.arange(block - 1)
        earlier = np.where(before < ids[:, None], self._sizes(before), 0).sum(axis=1)
        lengths = np.asarray(self.lengths[ids], np.int64).reshape(-1, width)
        sizes, rows = lengths.sum(axis=1), [np.zeros(0, np.int32)] * len(ids)
        for shard in np.unique(shards).tolist():
            mine = np.flatnonzero(shards == shard)
            entries, which = np.unique(
                (first[mine] - self._starts[shard]) // block, return_inverse=True
            )
            contents = [
                np.frombuffer(content, self.about["dtype"])
                for content in self._read(shard, entries.tolist())
            ]
            for row, entry in zip(mine.tolist(), which.tolist(), strict=True):
                rows[row] = contents[entry][earlier[row] : earlier[row] + sizes[row]]
        if any(len(row) != size for row, size in zip(rows, sizes.tolist(), strict=True)):
            raise LabError(f"{self.folder}: a shard does not fit its index: prepare it anew")
        values = np.concatenate([*rows, np.zeros(0, np.int32)]).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths.ravel())])
        flat, places = Ragged(values, offsets), np.arange(len(ids)) * width
        if width == 1:
            return {self.fields[0]: flat}
        return {name: flat.take(places + i) for i, name in enumerate(self.fields)}

    def _sizes(self, ids: np.ndarray) -> np.ndarray:
        return self.lengths[np.minimum(ids, len(self) - 1)].sum(axis=-1, dtype=np.int64)

    def _read(self, shard: int, entries: list[int]) -> list[bytes]:
        try:
            return self._reader(shard).read(entries)
        except (RuntimeError, ValueError, IndexError) as error:
            raise LabError(
                f"{self.folder / shard_name(shard)} cannot be read, prepare it anew: "
                f"{str(error).splitlines()[0]}"
            ) from error

    def _reader(self, shard: int) -> Any:
        from array_record.python.array_record_module import ArrayRecordReader

        with self._lock:
            if shard not in self._readers:
                self._readers[shard] = ArrayRecordReader(
                    str(self.folder / shard_name(shard)),
                    "readahead_buffer_size:0,max_parallelism:0",
                    file_reader_buffer_size=2**15,
                )
            return self._readers[shard]


def shard_name(number: int) -> str:
    """The path of a shard's file in the prepared directory, such as "shards/00002.array_record"."""
    return f"shards/{number:05d}.array_record"


def open_shards(
    data: Any, tokenizer: text.TokenizerConfig, kind: str, own: text.Tokenizer | None = None
) -> Shards:
    """The prepared directory of a config's section `data`, if it was made with these settings.

    `own` is the tokenizer of the run's weights, else None. LabError if anything differs."""
    shards = Shards(data.path)
    where, about = shards.folder, shards.about
    if about["task"] != kind:
        raise LabError(f"{where} was prepared for the task {about['task']}, not for {kind}")
    if own is not None and own.fingerprint() != shards.tokenizer().fingerprint():
        raise LabError(
            f"the run's tokenizer is not the one of {where}: prepare the data with the run's own, "
            "by --tokenizer=DIR"
        )
    asked = {"data": settings(data), "tokenizer": asdict(tokenizer)}
    for section, values in asked.items():
        for key, value in json.loads(json.dumps(values)).items():
            stored = about["settings"][section].get(key, value)
            if stored != value:
                raise LabError(
                    f"config.{section}.{key} = {value!r}, but {where} was prepared with "
                    f"{stored!r}: set --config.{section}.{key}={stored}, or prepare it anew"
                )
    return shards


def settings(data: Any) -> dict[str, Any]:
    """The settings of a section `data` that decide the content, not where it is."""
    return {key: value for key, value in asdict(data).items() if key not in LOCATION}
