"""Products of activations with kernels (weight matrices) that are split over many devices."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from transformer_lab.errors import LabError
from transformer_lab.ops.layout import constrain, current_mesh, split_of

Names = tuple[str | None, str | None]  # what a kernel's two dimensions mean, as in `ops.layout`
PARTS = "parts"  # the dimension of a kernel that is gathered where it is used
AHEAD = ("rows", "length", None, None)  # the activations' dimensions before the features


# The types in which a product of fewer bits reads its inputs, and the gradient of its output.
# int8 reads gradients as they are; float8's have the wider range (Micikevicius 2022, section 3)
NUMBERS = {
    "float": (None, None),
    "int8": (jnp.int8, None),
    "fp8": (jnp.float8_e4m3fn, jnp.float8_e5m2),
}


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def product(
    x: Float[Array, "*batch i"],
    kernel: Float[Array, "i o"],
    names: Names | None = (None, None),
    dtype: jnp.dtype | None = None,
    numbers: str = "float",
) -> Float[Array, "*batch o"]:
    """The product x kernel: the kernel is cast to x's type; `dtype` is the result's (None: x's).

    On a mesh the kernel is gathered where it is used, except along the dimensions that `names`
    split, and again in the backward pass, so that no layer's whole kernel outlives its use. The
    kernel's gradient is summed in the kernel's own type, and scattered. With None for the names,
    for an x that does not begin with examples, the compiler is left to choose.

    With `numbers` int8 or fp8 each row of x and each column of the kernel is scaled by its greatest
    magnitude and rounded to 8 bits; the gradient takes the rounding for the identity. The kernel's
    own gradient is computed from unrounded numbers.
    """
    return _dot(x, _together(kernel, names, x.dtype), dtype, *NUMBERS[numbers][:1] * 2)


def _together(kernel, names, dtype):
    kernel = kernel.astype(dtype)
    return kernel if names is None else constrain(constrain(kernel, *_apart(names)), *names)


def _apart(names):
    """The stored layout of a kernel: fsdp splits one of the dimensions that have no name."""
    rows, columns = names
    return (PARTS, columns) if rows is None else (rows, columns or PARTS)


def _product_forward(x, kernel, names, dtype, numbers):
    return product(x, kernel, names, dtype, numbers), (x, kernel)


def _product_backward(names, dtype, numbers, kept, back):
    x, kernel = kept
    back = back.astype(x.dtype)
    read, grads = NUMBERS[numbers]
    of_x = _dot(back, _together(kernel, names, x.dtype).T, None, grads, grads and read)
    return of_x, kernel_gradient(x, back, names and _apart(names), kernel.dtype)


product.defvjp(_product_forward, _product_backward)


def _dot(x, matrix, dtype, rows_as=None, columns_as=None):
    """Multiplies x with a matrix; on one device all rows of x form a single matrix first. Rows and
    columns are rounded to the types given.

    For an x of more dimensions XLA's CPU backend (0.10) first writes a transposed copy of the
    gradient, a quarter of the step of configs/t5_mixture.py. On a mesh the rows stay apart, because
    the compiler could no longer tell examples from positions.
    """
    rows = x if current_mesh() is not None else x.reshape(-1, x.shape[-1])
    last = (((rows.ndim - 1,), (0,)), ((), ()))
    if rows_as is None:
        out = jax.lax.dot_general(rows, matrix, last, preferred_element_type=dtype)
    else:
        out = _rounded_dot(rows, matrix, last, rows_as, columns_as).astype(dtype or x.dtype)
    return out.reshape(*x.shape[:-1], matrix.shape[1])


def _rounded_dot(rows, matrix, dims, rows_as, columns_as):
    try:
        import qwix
    except ImportError:
        raise LabError(
            'model.products of 8 bits need pip install "transformer_lab[qwix]"'
        ) from None
    ahead = tuple(range(rows.ndim - 1))
    left = qwix.quantize(rows, rows_as, channelwise_axes=ahead)
    return qwix.dot_general(left, qwix.quantize(matrix, columns_as, channelwise_axes=(1,)), dims)


def kernel_gradient(
    x: Float[Array, "*batch i"], back: Float[Array, "*batch o"], names: Names | None, dtype: Any
) -> Float[Array, "i o"]:
    """The kernel's gradient: the sum over all examples and positions of the outer products of x and
    `back`, the gradient of the output. It lies on the mesh as the kernel does.

    Each device sums its own examples; the results are summed and scattered over fsdp in one
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
    """The mesh axes in one entry of a `PartitionSpec`, as a tuple; none gives an empty one."""
    return (part,) if isinstance(part, str) else part or ()
