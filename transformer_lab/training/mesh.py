"""Devices and how arrays lie on them.

One mesh with the axes of `ops.layout`, and one addressing scheme: the first rule whose
regular expression is found in a parameter's path gives the axes of its dimensions. The optimizer's
moments carry the parameter's path in theirs, so the same rules cover them. What an adapted kernel
is made of (`training.adapting`) lies as the kernel would.
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

# Of what `layers` makes; a family's own stand in its file. Kernels are [in, out]: heads and hidden
# units lie on tensor, the other dimension on fsdp.
RULES: Rules = (
    (r"_adapter/", P()),
    (r"batch_stats/|(probe|pool/positions)$", P()),
    (r"(query|key|value|position|gate|up)/kernel$", P("fsdp", "tensor")),
    (r"(out|down)/kernel$", P("tensor", "fsdp")),
    (r"(query|key|value|gate|up)/bias$", P("tensor")),
    # Experts side by side; what makes a mixer's state is small.
    (r"feed_forward/(up|gate)$", P("expert", "fsdp", "tensor")),
    (r"feed_forward/down$", P("expert", "tensor", "fsdp")),
    (r"feed_forward/router(_bias)?$|_mix$", P()),
    (r"mixer/(in|select|receptance|decay_in|decay_out)/kernel$", P("fsdp")),
    (r"mixer/(log_poles|log_real|imaginary|out_re|out_im|convolution_kernel|step_kernel)$", P()),
    (r"_kernel$", P("fsdp")),  # recurrent: gates side by side
    (r"positions/embedding$", P()),
    # Split on both dimensions, a look-up would make XLA copy the whole table to every device.
    (r"embedding$", P(None, ("fsdp", "tensor"))),
    (r"(bias|scale|ns_coeffs)$", P()),  # the last are Muon's constants
)
# Of a kernel [in, out]: lora_a is [in, rank], lora_b [rank, out], a quantised one [in', out].
PART = re.compile(r"/(lora_a|lora_b|int8|nf4|absmax)$")


def fitted(config: MeshConfig, devices: int, rows: int = 0) -> MeshConfig:
    """The sizes that lie over at most so many devices and divide what the config says.

    What splits the model is kept first, copies go first; -1 takes the rest, as far as it divides
    `rows`, if those are given. MeshConfig(data=4, fsdp=2) on 2 devices: data 1, fsdp 2.
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
    """A mesh for a trained run that is only used: of the devices that there are, as many as divide
    its own mesh and its batches of `rows`."""
    if jax.process_count() == 1:
        config = fitted(config, jax.device_count(), rows)
        return make_mesh(config, math.prod(getattr(config, axis) for axis in AXES))
    return make_mesh(config)


def make_mesh(config: MeshConfig, devices: int | Sequence[jax.Device] = 0) -> Mesh:
    """All devices of this run, the first so many, or those given, as AXES; slices are joined by
    `slice`."""
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
    """ "regex=axis,axis;regex=..." with "-" for a dimension that is not split."""
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
    """ "decoder/layer_3/attention/query/kernel" of a pytree key path."""
    return jax.tree_util.keystr(key_path, simple=True, separator="/")


def shardings(
    tree: Any, mesh: Mesh, extra: str = "", family: Sequence[tuple[str, tuple]] = ()
) -> Any:
    """A NamedSharding for each leaf of a tree of shapes.

    Scalars are copied. A leaf lies by the first rule that is found in its path: of `extra`, of
    `family`, of `RULES`; one that no rule covers has its largest dimension that `fsdp` divides over
    that axis, if it has more than one. An extra rule that covers no leaf is an error. A dimension
    that its axes do not divide is not split, nor that of layers kept as one array.
    """
    own = parse_rules(extra)
    unused = {pattern for pattern, _ in own}
    rules = (*own, *((pattern, P(*axes)) for pattern, axes in family), *RULES)

    def place(key_path, leaf):
        path = path_of(key_path)
        part = PART.search(path)
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
    """The paths of a model's matrices and larger arrays that no rule covers."""
    rules = (*parse_rules(extra), *family, *RULES)
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return [path for p, x in leaves if x.ndim > 1 and not _rule(path := path_of(p), rules)]


def _rule(path, rules):
    return next((rule for rule in rules if re.search(rule[0], path)), None)


def _by_size(path: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    """The largest dimension that `fsdp` divides over it; a vector is copied. Of a kernel [in, out]
    the first one, as `layers.basic.Dense` brings it together."""
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
    """The number of rows of a batch must be a multiple of this."""
    return int(np.prod([mesh.shape[axis] for axis in ROW_AXES])) * micro_batches


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over all axes that split them."""
    return NamedSharding(mesh, P(ROW_AXES))


def own_rows(mesh: Mesh) -> Callable[[int], np.ndarray]:
    """Which of a batch's rows lie on devices of this process: bool [rows], for a number of rows."""
    sharding = NamedSharding(mesh, P(*batch_sharding(mesh).spec[:1]))

    def own(rows: int) -> np.ndarray:
        found = np.zeros(rows, bool)
        for (part,) in sharding.addressable_devices_indices_map((rows,)).values():
            found[part] = True
        return found

    return own


def placer(mesh: Mesh) -> Callable[[dict[str, np.ndarray]], dict[str, jax.Array]]:
    """Puts a batch of numpy arrays on the mesh, each process its own rows."""
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
