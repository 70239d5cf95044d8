"""What the benchmarks share: sizes, synthetic batches, interleaved timing, result rows."""

import datetime
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab.models.encoder_decoder import EncoderDecoderConfig

EOS, BOS = 1, 2
DROPOUT, SMOOTHING = 0.1, 0.1


@dataclass(frozen=True)
class Size:
    """A model and the batch it is timed on; every place of the batch is a real token."""

    layers: int  # of each stack
    width: int
    heads: int
    feed_forward: int
    vocabulary: int
    rows: int
    source: int = 19
    target: int = 22
    dtype: str = "float32"

    @property
    def tokens(self) -> int:
        """Source and target tokens of a batch."""
        return self.rows * (self.source + self.target)

    def step_flops(self) -> float:
        """Of the matrix products in a training step: the backward pass costs two forward ones."""
        d, f = self.width, self.feed_forward
        s, t = self.rows * self.source, self.rows * self.target
        encoder = s * (4 * d * d + 2 * d * f) + 2 * s * self.source * d
        decoder = t * (4 * d * d + 2 * d * f) + 2 * t * self.target * d
        cross = (2 * t + 2 * s) * d * d + 2 * t * self.source * d
        return 6.0 * (self.layers * (encoder + decoder + cross) + t * d * self.vocabulary)


SIZES = {
    "default": Size(2, 192, 4, 768, 4000, rows=100),  # configs/translate_en_fr.py
    "small": Size(1, 64, 4, 256, 1000, rows=24),  # about 10 ms a step on two cores
    "base": Size(6, 512, 8, 2048, 32_000, 400, 32, 32, "bfloat16"),  # Vaswani 2017, table 3
}


def model_config(size: Size, **changes) -> EncoderDecoderConfig:
    """The encoder-decoder of a size."""
    fields = {
        "layers": size.layers,
        "width": size.width,
        "heads": size.heads,
        "head_dim": size.width // size.heads,
        "feed_forward_width": size.feed_forward,
        "vocab_size": size.vocabulary,
        "max_length": 96,
        "norm_place": "pre",
        "dropout": DROPOUT,
        "dtype": size.dtype,
    }
    return EncoderDecoderConfig(**(fields | changes))


def make_batch(size: Size, seed: int = 0) -> dict[str, np.ndarray]:
    """Random ids as a translation batch holds them."""
    rng = np.random.default_rng(seed)
    batch = {}
    for name, length in (("source", size.source), ("target", size.target)):
        ids = rng.integers(4, size.vocabulary, (size.rows, length), dtype=np.int32)
        ids[:, -1] = EOS
        batch[name], batch[f"{name}_mask"] = ids, np.ones(ids.shape, bool)
    return batch


def interleave(turns: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each turn in each round, after one untimed round.

    Each turn waits for its own result. The order is turned about from round to round, so that a
    drift of the machine meets all of them alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for i in range(rounds + 1):
        for name in list(turns)[:: 1 if i % 2 else -1]:
            began = time.perf_counter()
            turns[name]()
            if i:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def paired(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the rounds' quotients: neighbours in time share the machine's mood."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def matmul_turn(dtype: str) -> tuple[Callable[[], None], float]:
    """A turn of square matrix products, and its floating-point operations."""
    n, chain = (1024, 4) if jax.default_backend() == "cpu" else (8192, 8)
    w = jax.random.normal(jax.random.key(0), (n, n), jnp.dtype(dtype)) * n**-0.5

    @jax.jit
    def products(x):
        for _ in range(chain):
            x = x @ w
        return x

    return lambda: jax.block_until_ready(products(w)), 2.0 * n**3 * chain


def machine() -> str:
    """The accelerator's name, else the processor's."""
    if jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    names = [line.split(":")[1].strip() for line in _cpu_lines("model name")]
    flags = "".join(_cpu_lines("flags")[:1])
    vectors = " with AVX-512" if "avx512f" in flags else ""
    return f"{len(names) or 1} cores, {(names or [platform.processor()])[0]}{vectors}"


def _cpu_lines(field: str) -> list[str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if line.startswith(field)]


def report(name: str, result: str, append: str | None) -> None:
    """Prints a result; with a path, also appends it there as a row of docs/benchmarks.md."""
    print(f"{name}: {result}", flush=True)
    if append:
        today = datetime.date.today().isoformat()
        with open(append, "a", encoding="utf-8") as file:
            file.write(f"| {name} | {result} | {today} | {machine()} |\n")
