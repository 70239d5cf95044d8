"""Name maps: one table a family says which of their tensors is which of our parameters.

Import and export derive from the same table. A path of ours is `encoder/layer_0/...`; `{i}` in a
rule stands for the same number in both names.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer_lab.errors import LabError

Shapes = Mapping[str, tuple[int, ...]]  # of our parameters, by path


@dataclass(frozen=True)
class Transform:
    """How one of our arrays is laid out in their file, and back."""

    to_theirs: Callable[[np.ndarray], np.ndarray]
    to_ours: Callable[[np.ndarray], np.ndarray]


SAME = Transform(lambda x: x, lambda x: x)
TRANSPOSE = Transform(lambda x: x.T, lambda x: x.T)  # torch's Linear holds [out, in]
ROW = Transform(lambda x: x[None], lambda x: x[0])  # [n] of ours is [1, n] of theirs


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    ours: str
    theirs: str
    transform: Transform = SAME

    def name(self, path: str) -> str | None:
        """Their name of the parameter at our path, None if the rule is about others."""
        pattern = re.escape(self.ours).replace(re.escape("{i}"), r"(\d+)")
        match = re.fullmatch(pattern, path)
        return match and self.theirs.replace("{i}", match[1] if match.groups() else "")


def dense(ours: str, theirs: str) -> list[Rule]:
    """A kernel and a bias of ours, a torch Linear of theirs."""
    return [
        Rule(f"{ours}/kernel", f"{theirs}.weight", TRANSPOSE),
        Rule(f"{ours}/bias", f"{theirs}.bias"),
    ]


def norm(ours: str, theirs: str) -> list[Rule]:
    """A LayerNorm with a bias."""
    return [Rule(f"{ours}/scale", f"{theirs}.weight"), Rule(f"{ours}/bias", f"{theirs}.bias")]


@dataclass(frozen=True)
class NameMap:
    """The table, and the tensors of theirs that hold nothing of their own."""

    rules: tuple[Rule, ...]
    copies: Mapping[str, str] = field(default_factory=dict)  # name -> whose values it repeats
    derived: Mapping[str, Callable[[], np.ndarray]] = field(default_factory=dict)  # computed by us
    unused: frozenset[str] = frozenset()  # read by no computation of theirs
    written_copies: frozenset[str] = frozenset()  # copies that their reader needs in the file

    def names(self, paths: Iterable[str]) -> dict[str, tuple[str, Transform]]:
        """Our path -> (their name, transform); no path without a rule, no rule without a path."""
        table, used = {}, set()
        for path in paths:
            hits = [(rule, name) for rule in self.rules if (name := rule.name(path))]
            if len(hits) != 1:
                raise LabError(f"{path}: {len(hits)} rules of the name map match, needs one")
            (rule, name), *_ = hits
            used.add(rule)
            table[path] = name, rule.transform
        if idle := [rule.ours for rule in self.rules if rule not in used]:
            raise LabError(f"the name map's rule {idle[0]} matches no parameter")
        return table


def import_params(
    names: NameMap, tensors: Mapping[str, np.ndarray], shapes: Shapes, source: str
) -> dict[str, Any]:
    """Our parameter tree, in float32, of their tensors.

    One LabError lists all that is missing, unexpected, of another shape or type, and each copy or
    derived tensor whose values are not those that it must have.
    """
    table = names.names(shapes)
    tensors = _restore_originals(names, tensors)
    known = {name for name, _ in table.values()} | names.unused
    known |= names.copies.keys() | names.derived.keys()
    faults = {
        "missing": [name for name, _ in table.values() if name not in tensors],
        "unexpected": sorted(tensors.keys() - known),
        "wrong": [*_misfits(table, tensors, shapes), *_wrong_values(names, tensors)],
    }
    if any(faults.values()):
        lists = (f"{kind}: {', '.join(found)}" for kind, found in faults.items() if found)
        raise LabError(f"{source}: {'; '.join(lists)}")
    flat = {
        path: np.ascontiguousarray(transform.to_ours(tensors[name]), dtype=np.float32)
        for path, (name, transform) in table.items()
    }
    return unflatten_dict(flat, sep="/")


def export_params(names: NameMap, params: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Their tensors, in float32, of our parameter tree."""
    flat = {path: np.asarray(value) for path, value in flatten_dict(params, sep="/").items()}
    found = {path: value.shape for path, value in flat.items()}
    if found != dict(shapes):
        differing = sorted({path for path, _ in found.items() ^ shapes.items()})
        raise LabError(f"the parameters are not those of the config: {', '.join(differing)}")
    tensors = {
        name: np.asarray(transform.to_theirs(flat[path]), dtype=np.float32)
        for path, (name, transform) in names.names(shapes).items()
    }
    return tensors | {name: tensors[names.copies[name]] for name in sorted(names.written_copies)}


def agrees(value: np.ndarray, formula: np.ndarray) -> bool:
    """Whether values within -1..1 are the formula's, up to the rounding of the type they have."""
    tolerance = 5e-4 if value.dtype.itemsize >= 4 else 5e-3
    return bool((np.abs(value.astype(np.float32) - formula) <= tolerance).all())


def _restore_originals(names: NameMap, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A writer may keep any one of several tied tensors: take the original from a copy."""
    tensors = dict(tensors)
    for copy, original in names.copies.items():
        if copy in tensors:
            tensors.setdefault(original, tensors[copy])
    return tensors


def _misfits(table, tensors, shapes) -> list[str]:
    faults = []
    for path, (name, transform) in table.items():
        if name not in tensors:
            continue
        value = tensors[name]
        needed = transform.to_theirs(np.broadcast_to(np.float32(0), shapes[path])).shape
        if value.shape != needed:
            faults.append(f"{name} has the shape {value.shape}, needs {needed}")
        elif not np.issubdtype(value.dtype, np.floating) and value.dtype.name != "bfloat16":
            faults.append(f"{name} has the type {value.dtype}, needs a floating-point type")
    return faults


def _wrong_values(names: NameMap, tensors: Mapping[str, np.ndarray]) -> list[str]:
    faults = []
    for copy, original in names.copies.items():
        if copy in tensors and not np.array_equal(tensors[copy], tensors[original]):
            faults.append(f"{copy} is tied to {original} but differs from it")
    for name in names.derived.keys() & tensors.keys():
        value, formula = tensors[name], names.derived[name]()
        if value.shape != formula.shape:
            faults.append(f"{name} has the shape {value.shape}, needs {formula.shape}")
            continue
        if not agrees(value, formula):
            error = np.abs(value.astype(np.float32) - formula).max()
            faults.append(f"{name} differs from its formula by {error:.1e}")
    return sorted(faults)
