"""Products of activations with kernels whose parts lie on many devices."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from transformer_lab.ops.layout import constrain, current_mesh, split_of

Names = tuple[str | None, str | None]  # of a kernel's two dimensions, as in `ops.layout`
PARTS = "parts"  # the dimension of a kernel that is gathered where it is used
AHEAD = ("rows", "length", None, None)  # of activations, all but the features


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def product(
    x: Float[Array, "*batch i"],
    kernel: Float[Array, "i o"],
    names: Names | None = (None, None),
    dtype: jnp.dtype | None = None,
) -> Float[Array, "*batch o"]:
    """x times a kernel that is read in the type of x; the sums come out in `dtype`, or that of x.

    On a mesh the kernel is brought together where it is used, but for the dimensions that the
    `names` split, and again on the way back, so that no layer's whole kernel outlives its use. The
    kernel's gradient is summed in the kernel's own type, and scattered. With None for the names,
    for an x that does not begin with rows, the compiler is left to choose.
    """
    return _dot(x, _together(kernel, names, x.dtype), dtype)


def _together(kernel, names, dtype):
    kernel = kernel.astype(dtype)
    return kernel if names is None else constrain(constrain(kernel, *_apart(names)), *names)


def _apart(names):
    """How a kernel is stored: of two dimensions the one without a name is split by fsdp."""
    rows, columns = names
    return (PARTS, columns) if rows is None else (rows, columns or PARTS)


def _product_forward(x, kernel, names, dtype):
    return product(x, kernel, names, dtype), (x, kernel)


def _product_backward(names, dtype, kept, back):
    x, kernel = kept
    back = back.astype(x.dtype)
    of_x = _dot(back, _together(kernel, names, x.dtype).T, None)
    return of_x, kernel_gradient(x, back, names and _apart(names), kernel.dtype)


product.defvjp(_product_forward, _product_backward)


def _dot(x, matrix, dtype):
    """All rows of x as one matrix where there is one device: of an x with more dimensions XLA's CPU
    backend (0.10) first writes a transposed copy of what comes back, a quarter of the step of
    configs/t5_mixture.py. On a mesh the compiler could no longer tell rows from positions."""
    rows = x if current_mesh() is not None else x.reshape(-1, x.shape[-1])
    last = (((rows.ndim - 1,), (0,)), ((), ()))
    out = jax.lax.dot_general(rows, matrix, last, preferred_element_type=dtype)
    return out.reshape(*x.shape[:-1], matrix.shape[1])


def kernel_gradient(
    x: Float[Array, "*batch i"], back: Float[Array, "*batch o"], names: Names | None, dtype: Any
) -> Float[Array, "i o"]:
    """The sum over all rows of x's outer products with what comes back, laid as the kernel is.

    Each device sums its own rows, and what they make is summed and scattered over fsdp in one
    collective. It is written out because XLA's TPU backend makes two of it on large meshes, a sum
    of the whole on each device and then a cut: twice the bytes.
    """
    mesh = current_mesh()
    if mesh is None:
        x, back = x.reshape(-1, x.shape[-1]), back.reshape(-1, back.shape[-1])
    over = tuple(range(x.ndim - 1))
    sums = partial(
        jax.lax.dot_general,
        dimension_numbers=((over, over), ((), ())),
        preferred_element_type=dtype,
    )
    if mesh is None or names is None:
        return sums(x, back)
    whole = [None if name == PARTS else name for name in names]
    ahead = AHEAD[: x.ndim - 1]
    specs = [split_of((*ahead, n), a.shape, mesh) for n, a in zip(whole, (x, back), strict=True)]
    laid = split_of(names, (x.shape[-1], back.shape[-1]), mesh)
    summed = [axis for axes in specs[0][:-1] for axis in _axes(axes)]
    cut = names.index(PARTS) if PARTS in names else 0
    scatter = "fsdp" in summed and "fsdp" in _axes(laid[cut])
    rest = tuple(axis for axis in summed if not (scatter and axis == "fsdp"))

    def mine(x, back):
        found = sums(x, back)
        if scatter:
            found = jax.lax.psum_scatter(found, "fsdp", scatter_dimension=cut, tiled=True)
        return jax.lax.psum(found, rest) if rest else found

    out = laid if scatter else P(*(None if "fsdp" in _axes(axes) else axes for axes in laid))
    found = jax.shard_map(mine, in_specs=tuple(specs), out_specs=out, check_vma=False)(x, back)
    return constrain(found, *names)


def _axes(part):
    """The axes of one dimension of a `PartitionSpec`."""
    return (part,) if isinstance(part, str) else part or ()
