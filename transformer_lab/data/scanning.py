"""A first reading of files larger than memory: what is held out, and a sample for the tokenizer.

Rows are held out by a hash of their source, so that equal sources (case and white space aside) fall
on the same side, and the same ones whatever the files' order and division: those of the smallest
hashes, as many as asked for. In memory are only these and the sample.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from transformer_lab.data.pairs import key
from transformer_lab.data.processes import results
from transformer_lab.data.raw_files import Part, Row, read
from transformer_lab.data.splits import shuffled
from transformer_lab.errors import LabError

HELD_OUT = 500  # documents of a split at most: their texts are kept, and read at each evaluation
LETTERS = 10_000  # characters of a text that go into the sample at most


@dataclass(frozen=True)
class Found:
    """What a reading found. `held` has validation and test, `digest` stands for all rows."""

    count: int
    report: Counter[str]
    digest: str
    held: dict[str, list[Row]]
    sample: list[Row]


def kept(rows: Iterable[Row], max_characters: int, report: Counter[str]) -> Iterator[Row]:
    """Rows with text in each field, none too long; drops are counted."""
    for row in rows:
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
    whole, digest = sum(part.size for part in parts), hashlib.sha256()
    calls = (
        (
            i,
            part,
            plan.kind,
            plan.names,
            limit,
            seed,
            most,
            plan.sample * part.size // max(whole, 1),
        )
        for i, part in enumerate(parts)
    )
    found: list[Found] = [None] * len(parts)
    held: dict[bytes, tuple[int, Row]] = {}
    for done, (number, digests, part) in enumerate(results(_scan_part, calls, plan.workers), 1):
        found[number] = part
        for name, row in digests.items():
            held[name] = max(held.get(name, (number, row)), (number, row), key=lambda x: x[0])
        held = {name: held[name] for name in sorted(held)[:most]}
        say(f"read {done} of {len(parts)} parts: {part.count:,} rows")
    count = sum(part.count for part in found)
    rows, chosen = [row for _, row in held.values()], dict(own)
    if not own:
        for split, size in sizes.items():
            if not pairs:
                share = getattr(data, f"{split}_share")
                size = min(HELD_OUT, max(1, round(share * count))) if share else 0
            by_source, rows = {row[0]: row for row in rows[:size]}, rows[size:]
            chosen[split] = [by_source[name] for name in shuffled(list(by_source), seed)]
    for part in found:
        digest.update(part.digest.encode())
    if count <= sum(map(len, chosen.values())):
        raise LabError(f"{count} rows are too few: hold out less, or give more data")
    sample = [row for part in found for row in part.sample]
    return Found(
        count, Counter(), digest.hexdigest(), {"validation": [], "test": [], **chosen}, sample
    )


def _scan_part(number, part, kind, names, limit, seed, most, letters):
    """The part's number, its rows of the smallest hashes, and the rest. Equal sources share a
    hash, and the last of them stays, as in `data.splits.hold_out`."""
    digest, report, count = hashlib.sha256(), Counter(), 0
    held: dict[bytes, Row] = {}
    sample: list[tuple[bytes, int, Row]] = []
    bound, floor, total = b"\xff" * 32, b"", 0
    for row in kept(read(part, kind, names), limit, report):
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
    found = Found(count, report, digest.hexdigest(), {}, [row for _, _, row in sample])
    return number, {n: held[n] for n in sorted(held)[:most]}, found


def _largest(sample, letters):
    """Those of the largest hashes, of so many characters or all, and how many these are."""
    sample, total = sorted(sample, reverse=True), 0
    for place, (_, _, row) in enumerate(sample):
        total += sum(map(len, row))
        if total >= letters:
            return sample[: place + 1], total
    return sample, total
