"""The mesh of devices, and how arrays lie on it.

One mesh has the axes of `ops.layout`, and one scheme of rules: the first rule whose regular
expression is found in a parameter's path gives the axes of its dimensions. The optimizer's moments
have the parameter's path in theirs, so the same rules cover them. The parts of an adapted kernel
(`training.adapting`) lie as the kernel would.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_lab.errors import LabError
from transformer_lab.ops.layout import AXES, ROW_AXES
from transformer_lab.ops.stacked import LAYERS
from transformer_lab.training.config import MeshConfig

Rules = Sequence[tuple[str, P]]

# Rules for the parameters of `layers`; a family's own are in its file. Kernels are [in, out]: heads
# and hidden units lie on tensor, the other dimension on fsdp.
RULES: Rules = (
    (r"_adapter/", P()),
    (r"batch_stats/|(probe|pool/positions)$", P()),
    (r"(query|key|value|position|gate|up)/kernel$", P("fsdp", "tensor")),
    (r"(out|down)/kernel$", P("tensor", "fsdp")),
    (r"(query|key|value|gate|up)/bias$", P("tensor")),
    # Experts lie on their own axis; the parameters that make a mixer's state are small.
    (r"feed_forward/(up|gate)$", P("expert", "fsdp", "tensor")),
    (r"feed_forward/down$", P("expert", "tensor", "fsdp")),
    (r"feed_forward/router(_bias)?$|_mix$", P()),
    (r"mixer/(in|select|receptance|decay_in|decay_out)/kernel$", P("fsdp")),
    (r"mixer/(log_poles|log_real|imaginary|out_re|out_im|convolution_kernel|step_kernel)$", P()),
    (r"convolution/taps$", P(None, "tensor")),
    (r"_kernel$", P("fsdp")),  # recurrent kernels, whose gates are side by side
    (r"positions/embedding$", P()),
    # Split on both dimensions, a look-up would make XLA copy the whole table to every device.
    (r"embedding$", P(None, ("fsdp", "tensor"))),
    (r"(bias|scale|ns_coeffs)$", P()),  # the last are Muon's constants
)
# The parts of an adapted kernel [in, out]: lora_a [in, rank], lora_b [rank, out], or quantised.
PART = re.compile(r"/(lora_a|lora_b|int8|nf4|absmax)$")


def fitted(config: MeshConfig, devices: int, rows: int = 0) -> MeshConfig:
    """The mesh sizes for at most so many devices, each a divisor of what the config says.

    Axes that split the model are kept first, copies are given up first; -1 takes the rest, as far
    as it divides `rows`, if those are given. MeshConfig(data=4, fsdp=2) on 2 devices: data 1, fsdp
    2.
    """
    sizes, left = {}, devices
    for axis in sorted(reversed(AXES), key=lambda axis: getattr(config, axis) == -1):
        wanted = getattr(config, axis)
        if wanted == -1:
            parts = math.prod(sizes.get(name, 1) for name in ROW_AXES)
            wanted = rows // parts if rows and axis in ROW_AXES else left
        sizes[axis] = math.gcd(wanted, left) or 1
        left //= sizes[axis]
    return dataclasses.replace(config, **sizes)


def used_mesh(config: MeshConfig, rows: int) -> Mesh:
    """The mesh for a run that is only used: as many of this machine's devices as divide the run's
    own mesh and its batches of `rows`."""
    if jax.process_count() == 1:
        config = fitted(config, jax.device_count(), rows)
        return make_mesh(config, math.prod(getattr(config, axis) for axis in AXES))
    return make_mesh(config)


def make_mesh(config: MeshConfig, devices: int | Sequence[jax.Device] = 0) -> Mesh:
    """A mesh of all devices of this run, the first so many, or those given, with the axes AXES.
    Slices are joined along the axis `slice`. Raises: LabError if the config's sizes do not fit."""
    sizes = [getattr(config, axis) for axis in AXES]
    chosen = jax.devices()[:devices] if isinstance(devices, int) and devices else devices or None
    count = len(chosen) if chosen else jax.device_count()
    fixed = int(np.prod([s for s in sizes if s != -1]))
    if count % fixed or (-1 not in sizes and count != fixed):
        fits = fitted(config if -1 in sizes else dataclasses.replace(config, data=-1), count)
        changed = [axis for axis in AXES if getattr(fits, axis) != getattr(config, axis)]
        words = " ".join(f"--config.mesh.{axis}={getattr(fits, axis)}" for axis in changed)
        raise LabError(
            f"mesh {dict(zip(AXES, sizes, strict=True))} does not fit {count} devices, whose "
            f"number must be the product of the sizes: set {words}"
        )
    shape = tuple(count // fixed if s == -1 else s for s in sizes)
    kinds = (AxisType.Auto,) * len(AXES)
    if shape[0] > 1 and hasattr((chosen or jax.devices())[0], "slice_index"):
        within = (1, *shape[1:])
        joined = (shape[0], *(1,) * len(within[1:]))
        placed = mesh_utils.create_hybrid_device_mesh(within, joined, chosen)
        return Mesh(placed, AXES, axis_types=kinds)
    try:
        return jax.make_mesh(shape, AXES, axis_types=kinds, devices=chosen)
    except NotImplementedError as error:  # a size that no sides of the slice multiply to
        raise LabError(f"mesh {dict(zip(AXES, shape, strict=True))}: {error!s:.300}") from error


def parse_rules(text: str) -> Rules:
    """Sharding rules written as "regex=axis,axis;regex=...", with "-" for a dimension not split."""
    rules = []
    for rule in filter(None, text.split(";")):
        pattern, _, axes = rule.rpartition("=")
        names = [None if a.strip() in ("-", "") else a.strip() for a in axes.split(",")]
        bad = [a for a in names if a and a not in AXES]
        if bad or not pattern:
            raise LabError(f'mesh.rules: "{rule}" is not "regex=axis,axis" with axes {AXES} or "-"')
        rules.append((pattern.strip(), P(*names)))
    return rules


def path_of(key_path: Any) -> str:
    """The path of a pytree key, such as "decoder/layer_3/attention/query/kernel"."""
    return jax.tree_util.keystr(key_path, simple=True, separator="/")


def shardings(
    tree: Any, mesh: Mesh, extra: str = "", family: Sequence[tuple[str, tuple]] = ()
) -> Any:
    """A NamedSharding for each array in a tree of shapes.

    Scalars are replicated. An array follows the first rule found in its path, from `extra`, then
    `family`, then `RULES`; without a rule, its largest dimension that `fsdp` divides lies over that
    axis, unless it is a vector. A dimension that its axes do not divide is not split, nor the layer
    axis of stacked layers. Raises: LabError for an extra rule that fits no array.
    """
    own = parse_rules(extra)
    unused = {pattern for pattern, _ in own}
    rules = (*own, *((pattern, P(*axes)) for pattern, axes in family), *RULES)

    def place(key_path, leaf):
        path = path_of(key_path)
        part = PART.search(path)
        # Quantized kernels and LoRA's factors follow the rule of the kernel they belong to.
        path = PART.sub("", path)
        if leaf.ndim == 0:
            return NamedSharding(mesh, P())
        stacked = f"/{LAYERS}/" in path
        found = _rule(path, rules)
        unused.discard(found and found[0])
        spec = found[1] if found else _by_size(path, leaf.shape[stacked:], mesh)
        spec = _of_part(spec, part[1]) if part else spec
        spec = P(None, *spec) if stacked else spec
        return NamedSharding(mesh, _fit(spec, leaf.shape, mesh))

    placed = jax.tree_util.tree_map_with_path(place, tree)
    if unused:
        raise LabError(f"mesh.rules: no parameter's path matches {', '.join(sorted(unused))}")
    return placed


def without_rule(params: Any, family: Sequence[tuple[str, tuple]], extra: str = "") -> list[str]:
    """The paths of a model's arrays of two or more dimensions that no rule covers."""
    rules = (*parse_rules(extra), *family, *RULES)
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return [path for p, x in leaves if x.ndim > 1 and not _rule(path := path_of(p), rules)]


def _rule(path, rules):
    return next((rule for rule in rules if re.search(rule[0], path)), None)


def _by_size(path: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    """The default: the largest dimension that `fsdp` divides lies over it; vectors are replicated.
    For a kernel [in, out] it is the first dimension, as `layers.basic.Dense` gathers it."""
    if len(shape) == 2 and path.endswith("/kernel"):
        return P("fsdp")
    parts = mesh.shape["fsdp"]
    fits = [i for i, size in enumerate(shape) if size % parts == 0 and len(shape) > 1]
    best = max(fits, key=lambda i: shape[i], default=None)
    return P(*("fsdp" if i == best else None for i in range(len(shape))))


def _of_part(spec: P, part: str) -> P:
    rows, columns = (*spec, None, None)[:2]
    return P(None if part == "lora_b" else rows, None if part == "lora_a" else columns)


def _fit(spec: P, shape: tuple[int, ...], mesh: Mesh) -> P:
    fitted = []
    for size, axes in zip(shape, (*spec, *(None,) * len(shape)), strict=False):
        names = (axes,) if isinstance(axes, str) else axes or ()
        parts = int(np.prod([mesh.shape[name] for name in names]))
        fitted.append(axes if parts > 1 and size % parts == 0 else None)
    return P(*fitted)


def rows_multiple(mesh: Mesh, micro_batches: int = 1) -> int:
    """The number that must divide the examples of a batch, for this mesh and micro-batches."""
    return int(np.prod([mesh.shape[axis] for axis in ROW_AXES])) * micro_batches


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of batches: examples are split over all axes that carry data."""
    return NamedSharding(mesh, P(ROW_AXES))


def own_rows(mesh: Mesh) -> Callable[[int], np.ndarray]:
    """A function from a batch's size n to bool [n], True for examples on this process's devices."""
    sharding = NamedSharding(mesh, P(*batch_sharding(mesh).spec[:1]))

    def own(rows: int) -> np.ndarray:
        found = np.zeros(rows, bool)
        for (part,) in sharding.addressable_devices_indices_map((rows,)).values():
            found[part] = True
        return found

    return own


def placer(mesh: Mesh) -> Callable[[dict[str, np.ndarray]], dict[str, jax.Array]]:
    """A function that puts a batch of numpy arrays on the mesh, each process its own examples. It
    raises LabError for a number of examples that the mesh does not divide."""
    sharding = batch_sharding(mesh)

    def place(batch):
        rows, multiple = len(next(iter(batch.values()))), rows_multiple(mesh)
        if rows % multiple:
            raise LabError(
                f"a batch of {rows} rows does not divide over mesh.data x mesh.fsdp = {multiple}"
            )
        if jax.process_count() == 1:
            return jax.device_put(batch, sharding)
        return {
            name: jax.make_array_from_callback(value.shape, sharding, value.__getitem__)
            for name, value in batch.items()
        }

    return place
