"""How fast a run goes: steps and tokens a second, waiting for data, use of the chips, traces."""

import contextlib
import time
from pathlib import Path
from typing import Any

import jax

from transformer_lab.errors import LabError, read_json
from transformer_lab.training.chips import chip_of
from transformer_lab.training.places import write_json

CLOCK = "clock.json"


class Pace:
    """Measures rates between two log lines; its clock since the run's start is kept on disk."""

    def __init__(self, workdir: Path, flops: float):
        self._path, self._flops, chip = workdir / CLOCK, flops, chip_of(jax.devices()[0])
        self._peak = chip.flops * jax.device_count() if chip else 0.0
        self._clock = {"began": time.time(), "in_steps": 0.0}
        with contextlib.suppress(LabError):  # a new run has none
            self._clock |= read_json(self._path)
        self._since, self._counts, self._waited, self._started = time.monotonic(), {}, 0.0, False
        self._idle = 0.0  # seconds since the last line that were compilation or waiting
        self.save()

    def count(self, sizes: dict[str, int]) -> None:
        """Counts one more step, with its numbers of examples and tokens."""
        if not self._started:  # the time before was mostly compilation
            self._started, self._idle = True, time.monotonic() - self._since
        for name, count in {**sizes, "steps": 1}.items():
            self._counts[name] = self._counts.get(name, 0) + count

    @contextlib.contextmanager
    def waiting(self):
        """A context in which the run waits for a batch; that time is reported."""
        began = time.monotonic()
        yield
        self._waited += time.monotonic() - began
        self._idle += time.monotonic() - began if self._started else 0.0

    @contextlib.contextmanager
    def stopped(self):
        """A context whose time does not count in the rates, such as evaluation."""
        began = time.monotonic()
        yield
        self._since += time.monotonic() - began

    def read(self) -> tuple[dict[str, float], str]:
        """The values since the last call, and the same in words.

        `goodput` is the share of the time since the run's first start, stops included, that went
        into steps; `mfu` the share of the chips' peak that the model's own FLOPs made.
        """
        now = time.monotonic()
        seconds, tokens = max(now - self._since, 1e-9), self._counts.get("tokens", 0)
        values = {f"{n}_per_second": c / seconds for n, c in self._counts.items()}
        words = [f"{r:,.{0 if r >= 10 else 2}f} {n.split('_')[0]}/s" for n, r in values.items()]
        # Compilation and waiting are time, but not steps.
        self._clock["in_steps"] += max(seconds - self._idle, 0.0)
        values["data_seconds"] = self._waited
        values["goodput"] = self._clock["in_steps"] / max(time.time() - self._clock["began"], 1e-9)
        words += [f"data {self._waited:.2f} s", f"goodput {values['goodput']:.1%}"]
        if self._peak and tokens:
            values["mfu"] = self._flops * tokens / seconds / self._peak
            words.append(f"MFU {values['mfu']:.1%}")
        self._since, self._counts, self._waited, self._idle = now, {}, 0.0, 0.0
        return values, "  ".join(words)

    def save(self) -> None:
        """Stores the clock beside a checkpoint, so that steps lost with a process do not count."""
        if jax.process_index() == 0:
            write_json(self._path, self._clock)


class Profile:
    """A trace of some steps for TensorBoard's profiler or Perfetto, made after compilation."""

    def __init__(self, workdir: Path, start: int, steps: int):
        self._folder, self._steps = workdir / "profile", range(start + 3, start + 3 + steps)
        self._running = False

    def at(self, step: int, metrics: Any) -> str:
        """Starts or ends the trace after this step; returns a line for the log, or ""."""
        if not self._running and step in self._steps:
            jax.profiler.start_trace(str(self._folder))
            self._running = True
        elif self._running and step not in self._steps:
            jax.block_until_ready(metrics)
            self.close()
            return f"a trace of {len(self._steps)} steps lies in {self._folder}"
        return ""

    def close(self) -> None:
        """Ends the trace if it is running."""
        if self._running:
            jax.profiler.stop_trace()
        self._running = False
