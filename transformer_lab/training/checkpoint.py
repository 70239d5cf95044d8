"""Checkpoints: Orbax for the arrays, a manifest of our own for what is good.

    workdir/checkpoints/step_00000100/
        state/            Orbax: parameters, optimizer, step
        run.json          step, data position, config
        assets/           the tokenizer's files
        manifest.json     size and SHA-256 of every file above; written last, verified first

Of several processes each hashes the files that it wrote, and the first one writes the manifest.

A step without a manifest, or whose files differ from it, is not a checkpoint: it is passed over
with a line that says so. Nothing in another directory is ever read, counted or deleted.
"""

import concurrent.futures
import contextlib
import json
import logging
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from transformer_lab.errors import LabError
from transformer_lab.training import places
from transformer_lab.training.config import lower_is_better, renamed
from transformer_lab.training.manifest import MANIFEST, digests, fault_of, merge, own_files
from transformer_lab.training.mesh import path_of
from transformer_lab.training.peers import everyones, of_first, to_first
from transformer_lab.training.places import write_atomically
from transformer_lab.training.startup import drop_late_writers

# Orbax raises what it also logs with a traceback for each of its threads: the line is enough.
logging.getLogger("absl").addFilter(
    lambda record: record.levelno < logging.ERROR or "orbax" not in record.pathname
)
STEP = re.compile(r"step_(\d{8})")
PARTS = re.compile(r"state(\.orbax-checkpoint-tmp.*)?|assets|(run|manifest)\.json(\.part)?")


@dataclass(frozen=True)
class Saved:
    """The contents of a checkpoint other than its arrays."""

    step: int
    directory: Path
    data: dict[str, Any]
    config: dict[str, Any]
    assets: dict[str, bytes]
    base: dict[str, Any] | None  # where the frozen leaves of an adapted run came from


class Checkpoints:
    """Saves a run in the background, keeps the newest checkpoints, restores verified ones."""

    def __init__(self, workdir: Path, keep: int, log=print, best: str = ""):
        self.root = places.place(workdir).absolute() / "checkpoints"
        self.keep, self.kept_score = keep, best
        self.log = log
        drop_late_writers()
        self._checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
        self._worker = concurrent.futures.ThreadPoolExecutor(1)
        self._pending: concurrent.futures.Future | None = None
        self._verified: dict[int, bool] = {}
        self._saves = 0
        self._staged = str(self.root).startswith("s3://")  # which Orbax cannot write
        self._link = places.stand_in(self.root, self._staged)

    def save(
        self,
        step: int,
        state: Any,
        data: dict[str, Any],
        config: dict[str, Any],
        assets: dict[str, bytes],
        base: dict[str, Any] | None = None,
        scores: dict[str, float] | None = None,
    ) -> None:
        """Copies the arrays off the devices, starts writing them and returns.

        Frozen parameters are not stored: `base` says where they came from. `scores` are the
        validation scores, if this step was evaluated. Raises: LabError if this save cannot start or
        the one before it failed.
        """
        self.wait()
        directory = self.root / f"step_{step:08d}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if jax.process_index() == 0:
                (directory / MANIFEST).unlink(missing_ok=True)
                if places.remote(directory):  # left by an interrupted save
                    places.rmtree(directory / "state")
            # Orbax returns once the arrays are on the host, and writes in the background.
            self._checkpointer.save(
                self._state(step), args=ocp.args.StandardSave(_stored(state)), force=True
            )
        except (OSError, ValueError) as error:
            raise _save_error(step, error) from error
        files = {f"assets/{name}": content for name, content in assets.items()}
        run = {"step": step, "data": data, "config": config, "base": base, "scores": scores}
        files["run.json"] = json.dumps(run, indent=1).encode()
        self._saves += 1
        self._pending = self._worker.submit(self._finish, step, directory, files)

    def refuse_failure(self) -> None:
        """Raises: LabError if the save under way has already failed in this process."""
        if self._pending is not None and self._pending.done():
            self._pending.result()

    def wait(self) -> None:
        """Waits until the last save is complete in all processes. Raises: LabError if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
            if jax.process_count() > 1:
                multihost_utils.sync_global_devices("saved")

    def _finish(self, step: int, directory: Path, files: dict[str, bytes]) -> None:
        try:
            self._checkpointer.wait_until_finished()
            self._checkpointer.check_for_errors()
            if self._staged:
                places.copy_files(self._state(step), directory / "state")
                shutil.rmtree(self._state(step))
            if jax.process_index() == 0:
                for name, content in files.items():
                    write_atomically(directory / name, content)
            found = digests(directory, own_files(directory, files))
            parts = to_first(f"manifest/{self._saves}", json.dumps(found))
            if parts:
                write_atomically(directory / MANIFEST, merge(parts))
                self._retain()
            self._verified[step] = True
        except Exception as error:
            raise _save_error(step, error) from error

    def _retain(self) -> None:
        whole = [s for s in self._steps() if (self._path(s) / MANIFEST).exists()]
        best = self.best()
        for step in whole[: -self.keep]:
            if best and step == best[0]:
                continue
            # The manifest goes first, so that a crash never leaves one over missing files.
            (self._path(step) / MANIFEST).unlink()  # from here on it is no checkpoint
        for step in self._steps():
            if step < whole[-1] and self._unfinished(step):
                places.rmtree(self._path(step))

    def _unfinished(self, step: int) -> bool:
        """Whether a directory holds nothing but what an interrupted save leaves behind."""
        names = [path.name for path in self._path(step).iterdir()]
        return MANIFEST not in names and all(map(PARTS.fullmatch, names))

    def best(self) -> tuple[int, float] | None:
        """The (step, score) of the best whole checkpoint, by the score named `best`, the first of
        equals; None if no score is named or no checkpoint has it."""
        found = []
        for step in self._steps() if self.kept_score else []:
            if (self._path(step) / MANIFEST).exists():
                run = json.loads((self._path(step) / "run.json").read_bytes())
                if (score := (run.get("scores") or {}).get(self.kept_score)) is not None:
                    found.append((step, score))
        return min(found, key=lambda x: rank(self.kept_score, x[1]), default=None)

    def _path(self, step: int) -> Path:
        return self.root / f"step_{step:08d}"

    def _state(self, step: int) -> Path:
        """The directory where Orbax keeps the arrays of a step."""
        return (self._link or self.root) / f"step_{step:08d}" / "state"

    @contextlib.contextmanager
    def _readable(self, step: int) -> Iterator[Path]:
        """A context with the directory from which Orbax can read a step's arrays."""
        if self._staged:
            places.copy_files(self._path(step) / "state", self._state(step))
        yield self._state(step)
        if self._staged:
            shutil.rmtree(self._state(step))

    def _steps(self) -> list[int]:
        if not self.root.is_dir():
            return []
        names = (STEP.fullmatch(entry.name) for entry in self.root.iterdir() if entry.is_dir())
        return sorted(int(match[1]) for match in names if match)

    def newest(self, count: int | None = None) -> list[int]:
        """The newest steps that verify, at most `count`, oldest first; older ones are not read.

        Logs which steps do not verify and why. All processes must call it, since they share the
        reading.
        """
        self.wait()
        good = []
        for step in reversed(json.loads(of_first(lambda: json.dumps(self._steps())))):
            if len(good) == count:
                break
            if self._is_good(step):
                good.insert(0, step)
        return good

    def scored(self, average: int) -> list[int]:
        """The steps whose parameters represent the run: that of the best score if one is kept, else
        the newest `average`. Raises: LabError if the best checkpoint is damaged."""
        if (best := self.best()) is None:
            return self.newest(average)
        if not self._is_good(best[0]):
            raise LabError(
                f"the best checkpoint, of step {best[0]}, is damaged: bring it back, or give "
                '--config.best="" to take the newest'
            )
        return [best[0]]

    def _is_good(self, step: int) -> bool:
        if step not in self._verified:
            self._verified[step] = self._verifies(step)
        return self._verified[step]

    def _verifies(self, step: int) -> bool:
        fault = fault_of(self._path(step), jax.process_index(), jax.process_count())
        faulty = [i for i, bad in enumerate(everyones(int(fault is not None))) if bad]
        if faulty:
            fault = fault or f"process {faulty[0]} found a fault in it"
            self.log(f"checkpoint step {step} is passed over: {fault}")
        return not faulty

    def damaged(self) -> list[int]:
        """The steps that were complete once and do not verify now."""
        good = self.newest()
        return [s for s in self._steps() if s not in good and (self._path(s) / MANIFEST).exists()]

    def array_bytes(self) -> int:
        """The size on disk, in bytes, of the newest good checkpoint's arrays."""
        manifests = (self._path(step) / MANIFEST for step in self.newest(1))
        files = (json.loads(path.read_bytes())["files"] for path in manifests)
        return sum(x["size"] for f in files for k, x in f.items() if k.startswith("state/"))

    def read(self, step: int) -> Saved:
        """Reads a good checkpoint except for its arrays."""
        directory = self._path(step)
        run = json.loads((directory / "run.json").read_bytes())
        assets = directory / "assets"
        return Saved(
            step=step,
            directory=directory,
            data=run["data"],
            config=renamed(run["config"]),
            assets={str(p.relative_to(assets)): p.read_bytes() for p in places.files_below(assets)},
            base=run.get("base"),
        )

    def restore(self, step: int, abstract: Any) -> Any:
        """The stored arrays, laid out as the abstract state's shardings say; frozen ones are kept.

        Orbax would cast a changed type and ignore a changed tree without a word: both are refused.
        """
        handler = ocp.StandardCheckpointHandler()
        with self._readable(step) as path, ocp.Checkpointer(handler) as checkpointer:
            tree, wanted = checkpointer.metadata(path).item_metadata.tree, _stored(abstract)
            _compare(tree, wanted, str(self._path(step)))
            found = checkpointer.restore(path, args=ocp.args.StandardRestore(wanted))
            return abstract.replace(**found)

    def restore_params(self, step: int, shardings: Any | None = None) -> Any:
        """The parameters alone, or their moving average if one is stored. They are host arrays
        unless shardings are given."""
        handler = ocp.PyTreeCheckpointHandler()
        with self._readable(step) as path, ocp.Checkpointer(handler) as checkpointer:
            tree = checkpointer.metadata(path).item_metadata.tree
            name = "average" if "average" in tree else "params"
            item = jax.tree.map(lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype), tree[name])
            if shardings is None:
                kinds = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), item)
            else:
                kinds = jax.tree.map(lambda s: ocp.ArrayRestoreArgs(sharding=s), shardings)
            args = ocp.args.PyTreeRestore(
                {name: item}, restore_args={name: kinds}, partial_restore=True
            )
            return checkpointer.restore(path, args=args)[name]

    def average_params(self, steps: list[int], shardings: Any | None = None) -> Any:
        """The mean of the parameters of several steps (Vaswani 2017, section 6.1)."""
        total = self.restore_params(steps[0], shardings)
        for step in steps[1:]:
            total = jax.tree.map(lambda a, b: a + b, total, self.restore_params(step, shardings))
        return jax.tree.map(lambda x: x / len(steps), total) if len(steps) > 1 else total

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Waits for this process's save, and ends its background thread."""
        try:
            if self._pending is not None:  # not `wait`: other processes may have failed
                self._pending.result()
        finally:
            self._worker.shutdown()
            self._checkpointer.close()
            if self._link is not None:
                shutil.rmtree(self._link.parent, ignore_errors=True)


def rank(name: str, score: float) -> float:
    """A number that is lower for a better score: losses and errors as they are, others negated."""
    value = score if lower_is_better(name) else -score
    return math.inf if math.isnan(value) else value


def _stored(state: Any) -> dict[str, Any]:
    names = ("step", "params", "opt_state", *(["average"] if state.average else []))
    return {name: getattr(state, name) for name in names}


def _compare(stored: Any, abstract: Any, name: str) -> None:
    """Raises: LabError if the stored arrays differ from this run's in path, type or shape."""

    def leaves(tree):
        flat = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {path_of(p): f"{np.dtype(x.dtype).name}{list(x.shape)}" for p, x in flat}

    have, want = leaves(stored), leaves(abstract)
    for path in sorted(have.keys() | want.keys()):
        if have.get(path) != want.get(path):
            raise LabError(
                f"{name}: {path} is {have.get(path, 'absent')} in the checkpoint and "
                f"{want.get(path, 'absent')} in this run: use another --workdir, or --init_from"
            )


def _save_error(step: int, error: Exception) -> LabError:
    reason = str(error).strip().split("\n")[0][:300] or type(error).__name__
    return LabError(f"checkpoint of step {step} could not be written: {reason}")
