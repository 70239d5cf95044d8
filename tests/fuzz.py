"""Damaged copies of real files, and the limits within which a reader must answer to each of them.

The same seed gives the same damage. A reader either reads a damaged copy or refuses it with one
`LabError` of one line: no other exception, at most 20 seconds and 1 GiB of new memory.
"""

import contextlib
import copy
import json
import random
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transformer_lab.errors import LabError

SECONDS, MEMORY = 20, 2**30
NESTED = "fifty thousand brackets"  # a place holder: Python cannot write such a value itself
DROP = object()
VALUES = (
    DROP, None, True, -1, 0, 1, 7, 2**31, 10**400, 1.5, -0.5, 1e308, float("nan"), float("inf"),
    "", "x", "12", "two\nlines", "\ud800", "$\\frac{", "../x", "w" * 5000, [], [1], ["x"], [[]],
    {}, {"x": 1}, {"0": None}, NESTED,
)  # fmt: skip


def of_json(content: bytes, seed: int, count: int | None = None) -> list[tuple[str, bytes]]:
    """Copies of a JSON file, or of JSON lines, with one value replaced or one key left out.

    All places with all of `VALUES`, or `count` that are drawn of them; each with words that say
    what was done.
    """
    text = content.decode()
    lines = [text]
    with contextlib.suppress(ValueError):
        json.loads(text)
        lines = []
    rows = [json.loads(line) for line in text.splitlines()] if lines else [json.loads(text)]
    places = [(i, path) for i, row in enumerate(rows) for path in _paths(row)]
    chosen = [(i, path, value) for i, path in places for value in VALUES]
    if count is not None and count < len(chosen):
        chosen = random.Random(seed).sample(chosen, count)
    return [_replaced(rows, *case) for case in chosen]


def of_bytes(content: bytes, seed: int, count: int) -> list[tuple[str, bytes]]:
    """Copies that are cut short, or changed in one region; the regions cover the whole file."""
    rng, made = random.Random(seed), []
    for number in range(count):
        start = len(content) * number // count
        size = rng.choice((1, 4, 64, 1024))
        before, region, after = content[:start], content[start : start + size], content[start:]
        kind, new = rng.choice(
            (
                ("cut", None),
                ("left out", b""),
                ("zeros", bytes(len(region))),
                ("ones", b"\xff" * len(region)),
                ("twice", region + region),
                ("random", rng.randbytes(len(region))),
                ("a flipped bit", bytes(byte ^ 1 << rng.randrange(8) for byte in region[:1])),
                ("digits", b"9" * 400),
            )
        )
        kept = len(region[:1]) if kind == "a flipped bit" else len(region)
        whole = before if new is None else before + new + after[kept:]
        made.append((f"{kind} at byte {start}, {size} long", whole))
    return made


def check(
    cases: list[tuple[str, bytes]], file: Path, read: Callable[[], object]
) -> dict[str, list[str]]:
    """Puts each copy in the place of `file` and reads it; returns what was read and what refused.

    Raises: AssertionError that names all copies that were answered otherwise.
    """
    original, found, faults = file.read_bytes(), {"read": [], "refused": []}, []
    try:
        for name, content in cases:
            file.write_bytes(content)
            try:
                with _limits():
                    read()
                found["read"].append(name)
            except LabError as error:
                found["refused"].append(name)
                if len(str(error).splitlines()) != 1:
                    faults.append(f"{file.name}, {name}: not one line: {str(error)!r:.300}")
            except (Exception, SystemExit) as error:
                faults.append(f"{file.name}, {name}: {type(error).__name__}: {str(error)!r:.300}")
    finally:
        file.write_bytes(original)
    assert not faults, f"{len(faults)} of {len(cases)}:\n" + "\n".join(faults)
    return found


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Time and address space: who asks for more gets a TimeoutError or a MemoryError."""

    def stop(*_):
        raise TimeoutError(f"more than {SECONDS} seconds")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    old_limits = resource.getrlimit(resource.RLIMIT_AS)
    old_handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, old_limits[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old_handler)
        resource.setrlimit(resource.RLIMIT_AS, old_limits)


def _paths(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The place of every value within a JSON value, the whole first."""
    yield path
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from _paths(value[key], (*path, key))


def _replaced(rows: list[Any], row: int, path: tuple, value: Any) -> tuple[str, bytes]:
    holder = {"row": copy.deepcopy(rows[row])}
    *way, last = "row", *path
    inner: Any = holder
    for key in way:
        inner = inner[key]
    if value is DROP:
        del inner[last]
    else:
        inner[last] = value
    new = [*rows[:row], *holder.values(), *rows[row + 1 :]]
    text = "\n".join(map(json.dumps, new)).replace(f'"{NESTED}"', "[" * 50000 + "]" * 50000)
    shown = "left out" if value is DROP else f"{value!r:.40}"
    return f"{'/'.join(map(str, (row, *path)))}: {shown}", text.encode()
