"""What to prepare: a config's own data, in memory, or in files larger than memory.

Files are read twice: first to choose the held-out rows and a sample to train the tokenizer on, then
to write the tokens, one shard for each part. Rows are held out by a hash of their source text:
those of the smallest hashes, as many as asked for. So rows of equal source (ignoring case and white
space) are in the same split, whatever the order of the files. Only the held-out rows and the sample
are in memory. Data in memory keeps the splits of its loader."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from transformer_lab import text
from transformer_lab.data.documents import DocumentsConfig, load_documents
from transformer_lab.data.formats.lines import LICENCE
from transformer_lab.data.formats.records import Part, Texts, find, parts_of, read
from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.data.processes import results
from transformer_lab.data.splits import SPLITS, key, shuffled
from transformer_lab.data.text_tasks import SPANS, load_tasks
from transformer_lab.errors import LabError
from transformer_lab.text.tokenizer import clean

SHARD = 64_000_000  # bytes of raw files in a shard
ROWS = 100_000  # rows in a shard of data in memory
HELD_OUT = 500  # most documents of a held-out split, which is read at each evaluation
LETTERS = 10_000  # most characters of a text in the sample
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to prepare, and how. `given` is a tokenizer to use; if None, one is trained on about
    `sample` characters of the training rows."""

    task: str
    data: Any  # PairsConfig, DocumentsConfig or TextTasksConfig
    tokenizer: text.TokenizerConfig
    given: text.Tokenizer | None = None
    sample: int = 20_000_000
    workers: int = 1
    shard: int = SHARD

    @property
    def kind(self) -> str:
        return "documents" if isinstance(self.data, DocumentsConfig) else "pairs"

    @property
    def names(self) -> Texts:
        """The two languages of translation pairs, else an empty tuple."""
        return self.data.sides() if isinstance(self.data, PairsConfig) else ()

    def asked(self) -> dict[str, Any]:
        """All settings that decide the directory's content, except for the source's own content."""
        tokenizer = self.given.config if self.given else self.tokenizer
        given = self.given.fingerprint() if self.given else None
        asked = {"data": asdict(self.data), "tokenizer": asdict(tokenizer), "given": given}
        return json.loads(json.dumps({**asked, "sample": self.sample, "shard": self.shard}))


@dataclass(frozen=True)
class Content:
    """The training rows of each part, shard by shard, and what else is known of the data.

    Files are a single part "". What only reading them tells is empty until `scanned`."""

    train: dict[str, list[Part | Sequence[Texts]]]
    files: list[list[Any]]  # name and bytes of each file; []: all is in memory
    held: dict[str, dict[str, list[Texts]]]  # by split, then part
    report: dict[str, int]
    licence: str
    fingerprint: str = ""  # SHA-256 of all texts
    sample: Iterable[Texts] = ()


def find_content(plan: Plan) -> Content:
    """The content that the config names; files are listed, but not read."""
    source = getattr(plan.data, "source", "shards")
    if source == "shards" and plan.data.path:
        raise LabError("the config reads a prepared directory: name the source of the data itself")
    paths = find(plan.data.path, plan.kind) if source == "files" and plan.data.path else None
    if paths is None:
        return _in_memory(plan)
    if getattr(plan.data, "max_pairs", 0) or getattr(plan.data, "max_documents", 0):
        raise LabError("config.data: a limit of the training set does not go with files: unset it")
    files = [[str(f), f.stat().st_size] for some in paths.values() for f in some]
    parts = {
        split: [p for f in some for p in parts_of(f, plan.shard)] for split, some in paths.items()
    }
    own = {}
    for split in [split for split in SPLITS[1:] if split in parts]:
        rows = (row for part in parts[split] for row in read(part, plan.kind, plan.names))
        own[split] = {"": list(kept(rows, 0, Counter()))}
    return Content({"": parts["train"]}, files, own, {}, LICENCE)


def _in_memory(plan: Plan) -> Content:
    """The content as the task itself would load it, with the same splits."""
    if plan.kind == "documents":
        found = load_documents(plan.data)
        sets, rows_of = {"": found}, lambda texts: [(text_,) for text_ in texts]
    else:
        pairs = isinstance(plan.data, PairsConfig)
        sets, rows_of = {"": load_pairs(plan.data)} if pairs else load_tasks(plan.data), lambda x: x
        if SPANS in sets:
            raise LabError(
                f'the task "{SPANS}" hides other words each epoch and cannot be prepared: leave it '
                "out of config.data.tasks"
            )
    rows = {s: {n: rows_of(getattr(one, s)) for n, one in sets.items()} for s in SPLITS}
    report = sum((Counter(one.report) for one in sets.values()), Counter())
    train = rows.pop("train")
    sample = _spaced(list(train.values()), plan.sample)
    if plan.kind == "documents":  # neighbours in the stream should not be neighbours in the source
        order = np.random.default_rng(plan.data.split_seed).permutation(len(train[""]))
        train = {"": [train[""][i] for i in order]}
    return Content(
        {n: [some[i : i + ROWS] for i in range(0, len(some), ROWS)] for n, some in train.items()},
        [],
        {s: {name: list(some) for name, some in parts.items()} for s, parts in rows.items()},
        {name: count for name, count in report.items() if name not in SPLITS},
        "; ".join(dict.fromkeys(one.licence for one in sets.values())),
        " ".join(one.fingerprint() for one in sets.values()),
        sample,
    )


def _spaced(sets: list[Sequence[Texts]], characters: int) -> Iterator[Texts]:
    """Evenly spaced rows of about `characters` in all, or all rows if they are fewer."""
    for rows in sets:
        some = [rows[i] for i in range(0, len(rows), max(1, len(rows) // 1000))]
        mean = sum(len(t) for row in some for t in row) / max(1, len(some))
        for i in range(0, len(rows), max(1, round(len(sets) * len(rows) * mean / characters))):
            yield rows[i]


def kept(rows: Iterable[Texts], max_characters: int, report: Counter[str]) -> Iterator[Texts]:
    """Rows with text in each field, none too long; `report` counts the others by reason."""
    for row in rows:
        row = tuple(map(clean, row))
        report["read"] += 1
        if not all(text_.strip() for text_ in row):
            report["empty"] += 1
        elif max_characters and max(map(len, row)) > max_characters:
            report["too_long"] += 1
        else:
            yield row


def scanned(plan: Plan, content: Content, say: Say) -> Content:
    """The content of files after a first reading of them; splits that the source has stay."""
    parts, data = content.train[""], plan.data
    sizes = {s: getattr(data, f"{s}_size", HELD_OUT) for s in ("test", "validation")}
    most = 0 if content.held else sum(sizes.values())
    limit, seed = getattr(data, "max_characters", 0), data.split_seed
    whole, digest = max(1, sum(part.size for part in parts)), hashlib.sha256()
    calls = ((i, part, plan.sample * part.size // whole) for i, part in enumerate(parts))
    call = partial(_scan_part, kind=plan.kind, names=plan.names, limit=limit, seed=seed, most=most)
    found: list[Any] = [None] * len(parts)  # for each part its rows, their SHA-256, and a sample
    held: dict[bytes, tuple[int, Texts]] = {}
    for done, (number, some, *rest) in enumerate(results(call, calls, plan.workers), 1):
        found[number] = rest
        for name, row in some.items():
            held[name] = max(held.get(name, (number, row)), (number, row), key=lambda x: x[0])
        held = {name: held[name] for name in sorted(held)[:most]}
        say(f"read {done} of {len(parts)} parts: {rest[0]:,} rows")
    count, rows = sum(rows for rows, _, _ in found), [row for _, row in held.values()]
    chosen = {"validation": [], "test": [], **{s: own[""] for s, own in content.held.items()}}
    for split, size in sizes.items() if most else ():
        if plan.kind == "documents":
            share = getattr(data, f"{split}_share")
            size = min(HELD_OUT, max(1, round(share * count))) if share else 0
        by_source, rows = {row[0]: row for row in rows[:size]}, rows[size:]
        chosen[split] = [by_source[name] for name in shuffled(list(by_source), seed)]
    for _, part, _ in found:
        digest.update(part)
    digest.update(json.dumps(chosen, sort_keys=True).encode())
    return replace(
        content,
        held={split: {"": rows} for split, rows in chosen.items()},
        fingerprint=digest.hexdigest(),
        sample=[row for _, _, sample in found for row in sample],
    )


def _scan_part(number, part, letters, kind, names, limit, seed, most):
    """The number of the part, its rows of the smallest hashes, its number of rows, their SHA-256,
    and a sample. Of equal sources the last is kept, as in `data.splits.split_by_source`."""
    digest, count = hashlib.sha256(), 0
    held: dict[bytes, Texts] = {}
    sample: list[tuple[bytes, int, Texts]] = []
    bound, floor, total = b"\xff" * 32, b"", 0
    for row in kept(read(part, kind, names), limit, Counter()):
        count += 1
        digest.update("\0".join((*row, "\n")).encode())
        name = hashlib.sha256(f"{seed}\0{key(row[0])}".encode()).digest()
        if name <= bound and most:
            held[name] = row
            if len(held) > 2 * most:
                held = {n: held[n] for n in sorted(held)[:most]}
                bound = max(held)
        if name >= floor and letters:
            sample.append((name, count, tuple(text_[:LETTERS] for text_ in row)))
            total += sum(map(len, sample[-1][2]))
            if total > 2 * letters:
                sample, total = _largest(sample, letters)
                floor = sample[-1][0]
    sample = sorted(_largest(sample, letters)[0], key=lambda item: item[1])
    smallest = {n: held[n] for n in sorted(held)[:most]}
    return number, smallest, count, digest.digest(), [row for _, _, row in sample]


def _largest(sample, letters):
    """The rows of the largest hashes with at least `letters` characters, and their characters."""
    sample, total = sorted(sample, reverse=True), 0
    for place, (_, _, row) in enumerate(sample):
        total += sum(map(len, row))
        if total >= letters:
            return sample[: place + 1], total
    return sample, total
