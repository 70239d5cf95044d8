"""Name maps: a table for each family says which tensor of a file is which parameter.

Import and export use the same table. Our paths look like `encoder/layer_0/...`; `{i}` in a rule is
the same number in both names. One tensor may pack several parameters, and one parameter may be
divided over several tensors."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer_lab.errors import LabError
from transformer_lab.layers.config import StackConfig

SLACK = 2**22  # parameters beyond which a model is refused without a list of what its file lacks
Shapes = Mapping[str, tuple[int, ...]]  # shapes of our parameters by path


@dataclass(frozen=True)
class Transform:
    """Converts our arrays, one or several, to one or several tensors of a file, and back."""

    to_theirs: Callable[..., np.ndarray | list[np.ndarray]]  # takes all of ours; may give a list
    to_ours: Callable[..., Sequence[np.ndarray]]  # takes all of the file's tensors


WRAPPERS = ("_orig_mod.", "module.")  # prefixes by torch.compile and data-parallel training
SAME = Transform(lambda x: x, lambda x: [x])
TRANSPOSE = Transform(lambda x: x.T, lambda x: [x.T])  # torch's Linear holds [out, in]
ROW = Transform(lambda x: x[None], lambda x: [x[0]])  # our [n] is their [1, n]
JOINED = Transform(  # three of our arrays, joined along the last axis
    lambda *parts: np.concatenate(parts, axis=-1), lambda x: np.split(x, 3, axis=-1)
)
CONVOLUTION = Transform(lambda x: x.T[:, None], lambda x: [x[:, 0].T])  # [W, D] is [D, 1, W]
APART = Transform(  # our [E, in, out] is E kernels [out, in]
    lambda x: list(np.swapaxes(x, 1, 2)), lambda *parts: [np.stack([x.T for x in parts])]
)
STACKED = Transform(  # our arrays [E, in, out] become [E, out, in], stacked along axis 1
    lambda *parts: np.concatenate([np.swapaxes(x, 1, 2) for x in parts], axis=1),
    lambda x: [np.swapaxes(x, 1, 2)],
)
PAIRED = Transform(
    STACKED.to_theirs, lambda x: [np.swapaxes(part, 1, 2) for part in np.split(x, 2, axis=1)]
)
QUERY_KEY_VALUE = ("query", "key", "value")


# Their names -> (our paths, the conversion between them)
Table = Mapping[tuple[str, ...], tuple[tuple[str, ...], Transform]]


@dataclass(frozen=True)
class Rule:
    """A row of the table: our path, or several packed in one tensor, and the name of the file's
    tensor, or several that hold one parameter."""

    ours: str | tuple[str, ...]
    theirs: str | tuple[str, ...]
    transform: Transform = SAME

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    @property
    def names(self) -> tuple[str, ...]:
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs

    def match(self, path: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The tensors' names and our paths of the rule that this path is part of, else None."""
        found = next(filter(None, (_numbered(part).fullmatch(path) for part in self.parts)), None)
        if found is None:
            return None
        number = found[1] if found.groups() else ""
        filled = lambda names: tuple(name.replace("{i}", number) for name in names)  # noqa: E731
        return filled(self.names), filled(self.parts)


def _numbered(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(re.escape("{i}"), r"(\d+)"))


def dense(ours: str, theirs: str, bias: bool = True, kernel: Transform = TRANSPOSE) -> list[Rule]:
    """The rules of the kernel and bias of a linear layer, a torch Linear in the file."""
    kernel = Rule(f"{ours}/kernel", f"{theirs}.weight", kernel)
    return [kernel, Rule(f"{ours}/bias", f"{theirs}.bias")] if bias else [kernel]


def norm(ours: str, theirs: str, bias: bool = True) -> list[Rule]:
    """The rules of a LayerNorm, or without a bias of an RMSNorm."""
    scale = Rule(f"{ours}/scale", f"{theirs}.weight")
    return [scale, Rule(f"{ours}/bias", f"{theirs}.bias")] if bias else [scale]


def within(ours: str, theirs: str, **parts: str) -> dict[str, str]:
    """The names of a module's parts: {"attention/query": "self_attn.q_proj"} and so on."""
    return {f"{ours}/{part}": f"{theirs}.{name}" for part, name in parts.items()}


def layers(
    config: StackConfig,
    ours: str,
    theirs: str,
    parts: Mapping[str, str],
    kernel: Transform = TRANSPOSE,
) -> list[Rule]:
    """The rules of all layers of a stack, such as "encoder" with "bert.encoder.layer".

    `parts` gives the name of each part of a layer, such as "attention/query". Parts that end in
    "_norm" are norms; which of the others have a bias follows from the config."""
    biases = {"attention": config.attention_bias, "feed_forward": config.feed_forward_bias}
    biases["mixer"] = config.mixer.bias
    rules, bare = [], ("key",) * (not config.key_bias) if config.qkv_bias else QUERY_KEY_VALUE
    for part, name in parts.items():
        names = f"{ours}/layer_{{i}}/{part}", f"{theirs}.{{i}}.{name}"
        module, _, leaf = part.removeprefix("cross_").partition("/")
        if part.endswith("_norm"):
            rules += norm(*names, config.norm != "rms_norm")
        else:
            rules += dense(*names, biases[module] and leaf not in bare, kernel)
    return rules


def experts(config: StackConfig, ours: str, theirs: str, parts: Mapping[str, str]) -> list[Rule]:
    """The rules of a layer's experts: our arrays [E, in, out] "up", "gate" and "down" are each a
    Linear for each expert in the file, whose number replaces {e}."""
    count = range(config.experts.count)
    names = {part: f"{theirs}.{name}.weight" for part, name in parts.items()}
    return [
        Rule(f"{ours}/{part}", tuple(name.replace("{e}", str(e)) for e in count), APART)
        for part, name in names.items()
    ]


def packed(attention: str, theirs: str, transform: Transform, bias: bool = True) -> list[Rule]:
    """The rules of query, key and value in one tensor, whose name ends in weight or bias."""
    leaves = [("kernel", "weight"), ("bias", "bias")][: 1 + bias]
    return [
        Rule(
            tuple(f"{attention}/{part}/{leaf}" for part in QUERY_KEY_VALUE),
            theirs + name,
            transform,
        )
        for leaf, name in leaves
    ]


def interleaved(heads: int) -> Transform:
    """A layout with the rows of query, key and value of head 1, then those of head 2 and so on.

    Ours are kernels [D, N*H] or biases [N*H], the file's [N*3*H, D] or [N*3*H]."""

    def to_theirs(*parts):
        split = [part.T.reshape(heads, -1, *part.T.shape[1:]) for part in parts]
        return np.stack(split, axis=1).reshape(-1, *parts[0].T.shape[1:])

    def to_ours(x):
        split = x.reshape(heads, 3, -1, *x.shape[1:])
        return [split[:, i].reshape(-1, *x.shape[1:]).T for i in range(3)]

    return Transform(to_theirs, to_ours)


def behind(rows: int) -> Transform:
    """A layout whose table has extra first rows, which only padding uses; ours lacks them."""
    return Transform(lambda x: np.pad(x, ((rows, 0), (0, 0))), lambda x: [x[rows:]])


@dataclass(frozen=True)
class NameMap:
    """The rules of a family, and the tensors that repeat others or can be computed."""

    rules: tuple[Rule, ...]
    copies: Mapping[str, str] = field(default_factory=dict)  # name -> the tensor that it repeats
    derived: Mapping[str, Callable[[], np.ndarray]] = field(default_factory=dict)  # name -> formula
    unused: frozenset[str] = frozenset()  # tensors that no model reads; {i}: any number
    written_copies: frozenset[str] = frozenset()  # copies that must be in the file
    prefix: str = ""  # of most names; files of a model without a head lack it
    rename: Callable[[str], str] = str  # what a file calls a tensor -> what the table calls it
    others: tuple[Rule, ...] = ()  # another layout that is read, but never written

    def names(self, paths: Iterable[str], held: Collection[str] = ()) -> Table:
        """The tensors' names -> (our paths, transform), for exactly these paths.

        If `held`, a file's names, has those of the other layout, that one is used. Raises: LabError
        for a path that not exactly one rule matches, and for a rule that matches no path."""
        table, used = {}, set()
        for path in paths:
            hits = [(rule, found) for rule in self.rules if (found := rule.match(path))]
            if len(hits) != 1:
                raise LabError(f"{path}: {len(hits)} rules of the name map match, needs one")
            used.add(hits[0][0])
            found = ((rule, rule.match(path)) for rule in self.others)
            rule, (group, parts) = next(
                ((rule, names) for rule, names in found if names and names[0][0] in held), hits[0]
            )
            table[group] = parts, rule.transform
        if idle := [rule.ours for rule in self.rules if rule not in used]:
            raise LabError(f"the name map's rule {idle[0]} matches no parameter")
        return table


def import_params(
    names: NameMap, tensors: Mapping[str, np.ndarray], shapes: Shapes, source: str
) -> dict[str, Any]:
    """Our parameter tree, in float32, from the tensors of a file.

    One LabError lists all tensors that are missing, unexpected or of a wrong shape or type, and
    copies or derived tensors whose values are not what they must be."""
    tensors = {names.rename(name): value for name, value in tensors.items()}
    table = names.names(shapes, {*tensors, *(names.prefix + name for name in tensors)})
    tensors = _restore_originals(names, _restore_prefix(names, table, tensors))
    needed = [name for group in table for name in group]
    known = {*needed, *names.copies, *names.derived}
    unused = [_numbered(template) for template in names.unused]
    ours = sum(math.prod(shape) for shape in shapes.values())
    held = sum(value.size for value in tensors.values())
    if ours > 2 * held + SLACK:  # refused before arrays of that size are made
        raise LabError(
            f"{source}: the settings are those of a model of {ours:,} parameters, the tensors hold "
            f"{held:,}: are they another model's?"
        )
    strange = (name for name in tensors if not any(rule.fullmatch(name) for rule in unused))
    faults = {
        "missing": [name for name in needed if name not in tensors],
        "unexpected": sorted(set(strange) - known),
        "wrong": [*_misfits(table, tensors, shapes), *_wrong_values(names, tensors)],
    }
    if any(faults.values()):
        lists = [f"{kind}: {', '.join(found)}" for kind, found in faults.items() if found]
        lost = [paths for group, (paths, _) in table.items() if {*group} & {*faults["missing"]}]
        if ("head/embedding",) in lost:
            lists.append(
                "the output head is missing: if it is the input embedding, say "
                '"tie_word_embeddings": true in config.json'
            )
        raise LabError(f"{source}: {'; '.join(lists)}")
    flat = {
        path: np.asarray(value, np.float32, order="C")
        for group, (paths, transform) in table.items()
        for path, value in zip(paths, transform.to_ours(*map(tensors.get, group)), strict=True)
    }
    return unflatten_dict(flat, sep="/")


def without_wrappers(tensors: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The tensors without the prefix of torch's wrappers, and that prefix ("" if none)."""
    taken = ""
    if not tensors:
        return tensors, taken
    while prefix := next((p for p in WRAPPERS if all(n.startswith(p) for n in tensors)), ""):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
        taken += prefix
    return tensors, taken


def export_params(names: NameMap, params: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """The tensors of a file, in float32, from our parameter tree."""
    flat = {path: np.asarray(value) for path, value in flatten_dict(params, sep="/").items()}
    found = {path: value.shape for path, value in flat.items()}
    if found != dict(shapes):
        differing = sorted({path for path, _ in found.items() ^ shapes.items()})
        raise LabError(f"the parameters are not those of the config: {', '.join(differing)}")
    tensors = {
        name: np.asarray(value, dtype=np.float32)
        for group, (paths, transform) in names.names(shapes).items()
        for name, value in _theirs(group, transform, (flat[path] for path in paths))
    }
    return tensors | {name: tensors[names.copies[name]] for name in sorted(names.written_copies)}


def _theirs(group, transform, ours) -> Iterable[tuple[str, np.ndarray]]:
    """The name of each tensor of a group with its array."""
    made = transform.to_theirs(*ours)
    return zip(group, made if isinstance(made, list) else [made], strict=True)


def differ(tensors: Mapping[str, np.ndarray], *names: str) -> bool:
    """Whether those of the named tensors that the file has are not all equal."""
    found = [tensors[name] for name in names if name in tensors]
    return any(not np.array_equal(found[0], other) for other in found[1:])


def agrees(value: np.ndarray, formula: np.ndarray) -> bool:
    """Whether values in -1..1 equal the formula's, up to the rounding of their type."""
    tolerance = 5e-4 if value.dtype.itemsize >= 4 else 5e-3
    return bool((np.abs(value.astype(np.float32) - formula) <= tolerance).all())


def _restore_prefix(names: NameMap, table, tensors) -> Mapping[str, np.ndarray]:
    """Adds the prefix to all names if the file, one of a bare model, has it in none."""
    if not names.prefix or any(name.startswith(names.prefix) for name in tensors):
        return tensors
    whole = {*(name for group in table for name in group), *names.copies}
    return {
        name if name in whole else names.prefix + name: value for name, value in tensors.items()
    }


def _restore_originals(names: NameMap, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Adds a missing original from its copy, as files may keep any one of several tied tensors."""
    tensors = dict(tensors)
    for copy, original in names.copies.items():
        if copy in tensors:
            tensors.setdefault(original, tensors[copy])
    return tensors


def _misfits(table, tensors, shapes) -> list[str]:
    faults = []
    zeros = {path: np.broadcast_to(np.float32(0), shape) for path, shape in shapes.items()}
    for name, needed in (
        pair
        for group, (paths, transform) in table.items()
        for pair in _theirs(group, transform, map(zeros.get, paths))
    ):
        if name not in tensors:
            continue
        value = tensors[name]
        if value.shape != needed.shape:
            faults.append(f"{name} has the shape {value.shape}, needs {needed.shape}")
        elif not np.issubdtype(value.dtype, np.floating) and value.dtype.name != "bfloat16":
            faults.append(f"{name} has the type {value.dtype}, needs a floating-point type")
        elif value.size and np.isnan(value.reshape(-1)[:1]).any() and np.isnan(value).all():
            faults.append(f"{name} is NaN throughout")
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
