"""Frozen kernels in one byte or half a byte a number.

A kernel [in, out] becomes a small tree: `int8` [in, out] with `absmax` [1, out], or `nf4`
[in / 2, out], whose bytes hold a row and the next, with `absmax` [in / 64, out].
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

BLOCK = 64  # numbers of an input column that share an absmax (Dettmers 2023, section 3)
# Quantiles of the normal distribution, with an exact zero (Dettmers 2023, appendix E).
NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip
Packed = dict[str, Shaped[Array, "..."]]


def quantize(kernel: Float[Array, "i o"], base: str) -> Packed:
    """int8: each column by its greatest magnitude; nf4: each block of 64 inputs of a column.

    An odd number of inputs has no nf4: the caller's to see to.
    """
    if base == "int8":
        absmax = jnp.abs(kernel).max(axis=0, keepdims=True)
        scaled = kernel / jnp.where(absmax > 0, absmax, 1) * 127
        return {"int8": jnp.round(scaled).astype(jnp.int8), "absmax": absmax}
    rows = kernel.shape[0]
    padded = jnp.pad(kernel, ((0, -rows % BLOCK), (0, 0)))
    blocks = padded.reshape(-1, BLOCK, kernel.shape[1])
    absmax = jnp.abs(blocks).max(axis=1)
    scaled = (blocks / jnp.where(absmax > 0, absmax, 1)[:, None]).reshape(padded.shape)[:rows]
    middles = (NF4[1:] + NF4[:-1]) / 2
    codes = jnp.searchsorted(middles, scaled).astype(jnp.uint8)
    return {"nf4": codes[0::2] << 4 | codes[1::2], "absmax": absmax}


def dequantize(packed: Packed) -> Float[Array, "i o"]:
    """The float32 kernel that is left."""
    absmax = packed["absmax"]
    if "int8" in packed:
        return packed["int8"].astype(jnp.float32) * (absmax / 127)
    both = packed["nf4"]
    codes = jnp.stack([both >> 4, both & 15], axis=1).reshape(-1, both.shape[1])
    scale = jnp.repeat(absmax, BLOCK, axis=0)[: codes.shape[0]]
    return jnp.asarray(NF4)[codes] * scale
