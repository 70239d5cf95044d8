"""Data larger than memory: 5 million made-up pairs, prepared, read, and the memory that both take.

    python benchmarks/large_data.py generate --folder=FOLDER       # FOLDER/pairs.tsv, 1.2 GB
    python benchmarks/large_data.py prepare --folder=FOLDER        # FOLDER/prepared
    python benchmarks/large_data.py read --folder=FOLDER           # batches of transformer_base

Sentences are words of a made-up language, drawn by Zipf's law, 20 a sentence on average, and the
same words in another one in another order: text enough for a subword tokenizer of 37,000 pieces.
Each of the last two prints one JSON line. Memory is the largest that the kernel saw of a process
(VmHWM), pages of mapped files that it may drop at any time included; `anonymous` is without them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

WORDS, MEAN, CHUNK = 120_000, 20, 20_000
SYLLABLES = [c + v for c in ("", *"bdfgklmnprstvz", "ch", "st", "tr") for v in "aeiou"]
CONFIG = "configs/transformer_base.py"


def vocabulary(rng: np.random.Generator) -> np.ndarray:
    """Different words, the frequent ones short."""
    words: dict[str, None] = {}
    while len(words) < WORDS:
        size = 1 if len(words) < 50 else 2 if len(words) < 4_000 else int(rng.integers(3, 6))
        words["".join(SYLLABLES[i] for i in rng.integers(len(SYLLABLES), size=size))] = None
    return np.array(list(words), object)


def generate(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    source, target = vocabulary(rng), vocabulary(rng)
    chance = 1 / np.arange(3, WORDS + 3)
    borders = np.cumsum(chance / chance.sum())
    with open(folder / "pairs.tsv", "w", encoding="utf-8") as file:
        for done in range(0, count, CHUNK):
            sizes = np.clip(
                rng.lognormal(np.log(MEAN) - 0.125, 0.5, min(CHUNK, count - done)), 2, 80
            )
            ends = np.cumsum(sizes.astype(int)).tolist()
            words = np.minimum(np.searchsorted(borders, rng.random(ends[-1])), WORDS - 1)
            # Words move by two places or so in the other language.
            places = np.arange(ends[-1]) + rng.random(ends[-1]) * 3
            begin, ours, theirs = 0, source[words], target[words]
            for end in ends:
                order = begin + np.argsort(places[begin:end])
                file.write(f"{' '.join(ours[begin:end])}\t{' '.join(theirs[order])}\n")
                begin = end


def memory(pid: int | str) -> dict[str, float]:
    """Megabytes that a process had at most, and what of the present ones is in no file."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return {}
    found = dict(line.split(":", 1) for line in lines)
    names = {"peak": "VmHWM", "anonymous": "RssAnon"}
    return {k: int(found[v].split()[0]) / 1000 for k, v in names.items() if v in found}


def family(pid: int) -> list[int]:
    """A process and those that it started."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(c) for t in tasks for c in (t / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(p for child in children for p in family(child))]


def prepare(folder: Path, workers: int, *more: str) -> None:
    command = [sys.executable, "-m", "transformer_lab", "prepare", f"--config={CONFIG}:en-de"]
    command += ["--config.data.source=files", f"--config.data.path={folder / 'pairs.tsv'}"]
    command += [f"--output={folder / 'prepared'}", f"--workers={workers}", *settings(), *more]
    began, peaks = time.monotonic(), {}
    process = subprocess.Popen(command)
    while process.poll() is None:
        for pid in family(process.pid):
            for name, value in memory(pid).items():
                peaks.setdefault(name, {})[pid] = max(value, peaks.get(name, {}).get(pid, 0.0))
        time.sleep(0.2)
    found = {
        f"{name}_mb": sorted(values.values(), reverse=True)[:3] for name, values in peaks.items()
    }
    seconds = time.monotonic() - began
    size = sum(f.stat().st_size for f in (folder / "prepared").rglob("*") if f.is_file())
    print(json.dumps({"seconds": seconds, "rc": process.returncode, "bytes": size, **found}))


def settings() -> list[str]:
    return ["--config.data.max_characters=0"]


def read(folder: Path, batches: int, began: float) -> None:
    from ml_collections import config_flags  # noqa: F401 (what the config needs)

    sys.path.insert(0, ".")
    from configs.transformer_base import get_config
    from transformer_lab.training import runs
    from transformer_lab.training.config import resolve
    from transformer_lab.training.mesh import make_mesh

    config = get_config("en-de")
    config.data.update(source="shards", path=str(folder / "prepared"), max_characters=0)
    resolved = resolve(config)
    before = memory("self")
    task = runs.build_task(resolved, None, make_mesh(resolved.run.mesh))
    lines = task.report()
    source = task.train_batches()
    tokens, rows = 0, 0
    next(source)
    first = time.monotonic() - began
    for _ in range(16):  # what was read ahead
        next(source)
    start = time.monotonic()
    for _ in range(batches):
        sizes = task.sizes(next(source))
        tokens, rows = tokens + sizes["tokens"], rows + sizes["examples"]
    seconds = time.monotonic() - start
    source.close()
    print("\n".join(lines))
    print(json.dumps({
        "first_batch_seconds": first, "batches_per_second": batches / seconds,
        "tokens_per_second": tokens / seconds, "rows_per_batch": rows / batches,
        "before_mb": before, "after_mb": memory("self"), "pid": os.getpid(),
    }))  # fmt: skip


if __name__ == "__main__":
    START = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("generate", "prepare", "read"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=500)
    args = parser.parse_args()
    if args.what == "generate":
        args.folder.mkdir(parents=True, exist_ok=True)
        generate(args.folder, args.pairs)
    elif args.what == "prepare":
        prepare(args.folder, args.workers)
    else:
        read(args.folder, args.batches, START)
