"""A first reading of files larger than memory: what is held out, and a sample for the tokenizer.

Rows are held out by a hash of their source, so that equal sources (case and white space aside) fall
on the same side, and the same ones whatever the files' order and division: those of the smallest
hashes, as many as asked for. In memory are only these and the sample.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformer_lab.data.formats.records import Part, Row, read
from transformer_lab.data.processes import results
from transformer_lab.data.splits import key, shuffled
from transformer_lab.text.tokenizer import clean

HELD_OUT = 500  # documents of a split at most: their texts are kept, and read at each evaluation
LETTERS = 10_000  # characters of a text that go into the sample at most


@dataclass(frozen=True)
class Found:
    """What a reading found. `held` has validation and test, `digest` stands for all texts."""

    digest: str
    held: dict[str, list[Row]]
    sample: list[Row]


def kept(rows: Iterable[Row], max_characters: int, report: Counter[str]) -> Iterator[Row]:
    """Rows with text in each field, none too long; drops are counted. No lone surrogates stay."""
    for row in rows:
        row = tuple(map(clean, row))
        report["read"] += 1
        if not all(text.strip() for text in row):
            report["empty"] += 1
        elif max_characters and max(map(len, row)) > max_characters:
            report["too_long"] += 1
        else:
            yield row


def scan(parts: list[Part], plan: Any, own: dict[str, list[Row]], say: Any) -> Found:
    """Reads all parts. `own` are splits that the source has itself: none are held out then.

    `plan` is a `data.preparing.Plan`.
    """
    data, pairs = plan.data, plan.kind == "pairs"
    if pairs:
        sizes = {"test": data.test_size, "validation": data.validation_size}
    else:
        sizes = dict.fromkeys(("test", "validation"), HELD_OUT)
    most = 0 if own else sum(sizes.values())
    limit, seed = getattr(data, "max_characters", 0), data.split_seed
    whole, digest = max(1, sum(part.size for part in parts)), hashlib.sha256()
    calls = ((i, part, plan.sample * part.size // whole) for i, part in enumerate(parts))
    call = partial(_scan_part, kind=plan.kind, names=plan.names, limit=limit, seed=seed, most=most)
    found: list[Any] = [None] * len(parts)  # of each part: rows, their SHA-256, sample
    held: dict[bytes, tuple[int, Row]] = {}
    for done, (number, some, *rest) in enumerate(results(call, calls, plan.workers), 1):
        found[number] = rest
        for name, row in some.items():
            held[name] = max(held.get(name, (number, row)), (number, row), key=lambda x: x[0])
        held = {name: held[name] for name in sorted(held)[:most]}
        say(f"read {done} of {len(parts)} parts: {rest[0]:,} rows")
    count = sum(rows for rows, _, _ in found)
    rows, chosen = [row for _, row in held.values()], {"validation": [], "test": [], **own}
    if not own:
        for split, size in sizes.items():
            if not pairs:
                share = getattr(data, f"{split}_share")
                size = min(HELD_OUT, max(1, round(share * count))) if share else 0
            by_source, rows = {row[0]: row for row in rows[:size]}, rows[size:]
            chosen[split] = [by_source[name] for name in shuffled(list(by_source), seed)]
    for _, part, _ in found:
        digest.update(part)
    digest.update(json.dumps(chosen, sort_keys=True).encode())
    return Found(digest.hexdigest(), chosen, [row for _, _, sample in found for row in sample])


def _scan_part(number, part, letters, kind, names, limit, seed, most):
    """The part's number, its rows of the smallest hashes, how many rows it has, their SHA-256, and
    a sample. Equal sources share a hash; the last of them stays, as in `data.splits.hold_out`."""
    digest, count = hashlib.sha256(), 0
    held: dict[bytes, Row] = {}
    sample: list[tuple[bytes, int, Row]] = []
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
            sample.append((name, count, tuple(text[:LETTERS] for text in row)))
            total += sum(map(len, sample[-1][2]))
            if total > 2 * letters:
                sample, total = _largest(sample, letters)
                floor = sample[-1][0]
    sample = sorted(_largest(sample, letters)[0], key=lambda item: item[1])
    smallest = {n: held[n] for n in sorted(held)[:most]}
    return number, smallest, count, digest.digest(), [row for _, _, row in sample]


def _largest(sample, letters):
    """Those of the largest hashes, of so many characters or all, and how many these are."""
    sample, total = sorted(sample, reverse=True), 0
    for place, (_, _, row) in enumerate(sample):
        total += sum(map(len, row))
        if total >= letters:
            return sample[: place + 1], total
    return sample, total
