"""Compares an imported model with inputs and outputs of the reference implementation.

The reference is an .npz file: arrays named as inputs are fed to the model, all others are compared
with its outputs. `greedy` and `beam4` are generations of at most 8 new tokens, or as many as a
wider array holds. Those that continue a `prompt` do not stop at the end token."""

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np

from transformer_lab.errors import LabError, check_file
from transformer_lab.pretrained import Pretrained
from transformer_lab.pretrained.generation import NO_TOKEN
from transformer_lab.pretrained.running import RUNNERS

INPUT_NAMES = frozenset(name for runner in RUNNERS.values() for name in runner.inputs)
BEAM4 = {"beam_size": 4, "alpha": 1.0, "length_penalty": "power", "early_stopping": "heuristic"}
GENERATIONS = {"greedy": {"beam_size": 1}, "beam4": BEAM4}
NEW_TOKENS = 8


@dataclass(frozen=True)
class Comparison:
    """The greatest difference between an array of the reference and ours, at the index `where`."""

    name: str
    shape: tuple[int, ...]
    difference: float  # for token ids the number that differ
    where: tuple[int, ...]
    tokens: bool = False

    def passes(self, tolerance: float) -> bool:
        """Whether all tokens are equal, or no value differs by more than the tolerance."""
        return self.difference <= (0.0 if self.tokens else tolerance)


def check(model: Pretrained, path: str | Path) -> list[Comparison]:
    """A comparison for each output in the file; LabError names those that cannot be computed."""
    arrays = read_arrays(Path(path))
    runner = RUNNERS[model.kind]
    inputs = {name: value for name, value in arrays.items() if name in INPUT_NAMES}
    expected = {name: value for name, value in arrays.items() if name not in INPUT_NAMES}
    if foreign := sorted(inputs.keys() - set(runner.inputs)):
        raise LabError(f"{path}: a {model.model_type} model takes no {', '.join(foreign)}")
    if not expected:
        raise LabError(f"{path}: holds no output to compare with")
    # Accelerators multiply float32 with reduced precision by default.
    with jax.default_matmul_precision("highest"):
        computed = jax.device_get(runner.outputs(model.config, model.params, inputs))
        known = computed.keys() | (GENERATIONS.keys() if runner.generate else set())
        if unknown := sorted(expected.keys() - known):
            valid = ", ".join(sorted(known))
            raise LabError(f"{path}: cannot compute {', '.join(unknown)} (only {valid})")
        return [
            _compare_tokens(name, value, _generate(model, inputs, name, value))
            if name in GENERATIONS
            else _compare(name, value, *computed[name])
            for name, value in expected.items()
        ]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name. Raises: LabError if it cannot be read."""
    try:
        file = np.load(check_file(path), allow_pickle=False)
        if isinstance(file, np.lib.npyio.NpzFile):
            with file:
                return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise LabError(f"{path}: damaged or not an .npz file: {error}") from error
    raise LabError(f"{path}: not an .npz file")


def _generate(model: Pretrained, inputs, name: str, expected: np.ndarray) -> np.ndarray:
    width = expected.shape[-1] if expected.ndim == 2 else 0
    start = inputs["prompt"].shape[-1] if "prompt" in inputs else 1
    decode = replace(
        model.decode,
        n_best=1,
        max_new_tokens=min(max(NEW_TOKENS, width - start), model.config.max_length),
        **{"temperature": 0.0, "top_k": 0, "top_p": 1.0, **GENERATIONS[name]},
    )
    special = model.special
    if "prompt" in inputs:
        decode = replace(decode, force_eos=False, end_tokens=())
        special = replace(special, eos=NO_TOKEN)
    generate = RUNNERS[model.kind].generate
    return generate(model.config, model.params, inputs, decode, special)[0]


def _compare(
    name: str, expected: np.ndarray, found: np.ndarray, mask: np.ndarray | None
) -> Comparison:
    if expected.shape != found.shape:
        raise LabError(f"{name}: the reference has the shape {expected.shape}, ours {found.shape}")
    if not np.issubdtype(expected.dtype, np.number):
        raise LabError(f"{name}: the reference is of the type {expected.dtype}, not a number")
    expected, found = expected.astype(np.float64), found.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        difference = np.where(expected == found, 0.0, np.abs(expected - found))
    difference = np.where(np.isnan(difference), np.inf, difference)
    if mask is not None:
        difference = np.where(mask, difference, 0.0)
    if not difference.size:
        raise LabError(f"{name}: the reference is empty")
    where = np.unravel_index(difference.argmax(), difference.shape)
    return Comparison(name, expected.shape, float(difference[where]), tuple(map(int, where)))


def _compare_tokens(name: str, expected: np.ndarray, found: np.ndarray) -> Comparison:
    if expected.ndim != 2 or len(expected) != len(found):
        raise LabError(
            f"{name}: the reference has the shape {expected.shape}, needs {len(found)} rows"
        )
    width = max(expected.shape[1], found.shape[1])
    fill = lambda rows: np.pad(  # noqa: E731  another length is a difference too
        rows.astype(np.int64), ((0, 0), (0, width - rows.shape[1])), constant_values=-1
    )
    wrong = fill(expected) != fill(found)
    where = np.unravel_index(wrong.argmax(), wrong.shape)
    return Comparison(name, expected.shape, float(wrong.sum()), tuple(map(int, where)), tokens=True)


def table(rows: Sequence[Comparison], tolerance: float) -> str:
    """A text table: each array's name, shape and greatest difference, and at which index it is."""
    lines = [("array", "shape", "greatest difference", "where", "")]
    for row in rows:
        shown = f"{row.difference:.0f} tokens" if row.tokens else f"{row.difference:.2e}"
        where = str(list(row.where)) if row.difference else "-"
        verdict = "ok" if row.passes(tolerance) else "DIFFERS"
        lines.append((row.name, str(list(row.shape)), shown, where, verdict))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
