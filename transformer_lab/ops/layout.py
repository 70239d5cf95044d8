"""Where activations lie on a mesh of devices: names of dimensions, and the axes that split them.

A module says what the dimensions of an array mean, `constrain(x, "rows", "length", "width")`, where
the array is made; this table says over which axes of the mesh each meaning is split. Without it the
compiler may split the features instead and bring the rows of all devices to each of them.
"""

import math
from typing import Any

import jax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Shaped

AXES = ("slice", "data", "fsdp", "expert", "sequence", "tensor")
ROW_AXES = ("slice", "data", "expert", "fsdp")
DIMENSIONS: dict[str, tuple[str, ...]] = {
    "rows": ROW_AXES,  # the examples of a batch
    "rows apart": ("slice", "data", "fsdp"),  # examples where the expert axis splits the experts
    "length": ("sequence",),  # positions of a row
    "heads": ("tensor",),
    "hidden": ("tensor",),  # units of the feed-forward
    "vocabulary": ("tensor",),
    "experts": ("expert",),
    "width": (),  # features of the residual stream, whole on each device
    # On the way out of a table whose columns are split (`layers.basic.Embedding`).
    "copies": ROW_AXES[:-1],
    "columns": ("fsdp", "tensor"),
    "parts": ("fsdp",),
}


def current_mesh() -> Any | None:
    """The mesh that the function being traced is compiled for; None where there is one device."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.size == 1 else mesh


def split_of(names: tuple[str | None, ...], shape: tuple[int, ...], mesh: Any) -> P:
    """The `PartitionSpec` that splits an array with these named dimensions over `mesh`.

    A dimension whose size its axes do not divide, or whose name is None, lies whole on each device.
    """
    parts = []
    for name, size in zip(names, shape, strict=True):
        axes = tuple(a for a in DIMENSIONS[name or "width"] if mesh.shape.get(a, 1) > 1)
        parts.append(axes if axes and size % math.prod(mesh.shape[a] for a in axes) == 0 else None)
    return P(*parts)


def constrain(x: Shaped[Array, "*shape"], *names: str | None) -> Shaped[Array, "*shape"]:
    """x, laid over the mesh as the names of its dimensions ask; on one device x unchanged."""
    mesh = current_mesh()
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, split_of(names, x.shape, mesh))
