"""Encodings of positions (sinusoids, binary, RoPE) and position biases (ALiBi, T5's buckets)."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num


def sinusoids(
    positions: Num[Array, "*length"], width: int, *, halves: bool = False, base: float = 10_000.0
) -> Float[Array, "*length width"]:
    """PE[pos, 2i] = sin(pos / base^(2i/width)), PE[pos, 2i+1] = cos(...) (Vaswani 2017, 3.5).

    With `halves` all sines stand before all cosines, as in Marian and Tensor2Tensor; an odd width
    has one sine more than cosines.
    """
    frequencies = base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    sines, cosines = jnp.sin(angles), jnp.cos(angles)
    if halves:
        return jnp.concatenate([sines, cosines], axis=-1)[..., :width]
    return jnp.stack([sines, cosines], axis=-1).reshape(*positions.shape, -1)[..., :width]


def binary_code(positions: Int[Array, "*length"], width: int) -> Float[Array, "*length width"]:
    """Bit i of the position in dimension i, as 0 or 1; unique below 2^width."""
    bits = jnp.minimum(jnp.arange(width), 31)
    code = (positions[..., None] >> bits) & 1
    return code.astype(jnp.float32)


def rope_frequencies(
    dims: int,
    base: float = 10_000.0,
    *,
    scaling: str = "none",
    factor: float = 1.0,
    original_length: int = 2048,
    low: float = 1.0,
    high: float = 4.0,
) -> Float[np.ndarray, "half"]:
    """The angle a position adds for each rotated pair, base^(-2i / dims) radians (Su 2021, eq. 15).

    `scaling` stretches it to longer texts. linear divides all angles by the factor (Chen 2023).
    llama3 divides those with less than `low` turns in the original length, keeps those with more
    than `high`, and blends between. yarn (Peng 2023, section 3.2) does so by a ramp over dimensions
    from `high` turns (beta fast) to `low` (slow).
    """
    plain = base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    if scaling == "none":
        return plain.astype(np.float32)
    if scaling == "linear":
        return (plain / factor).astype(np.float32)
    if scaling == "llama3":
        # Pairs that turn often within the original length tell near distances: these stay.
        turns = original_length * plain / (2 * math.pi)
        keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    else:
        place = lambda turns: (  # noqa: E731  the dimension that makes so many turns
            dims * math.log(original_length / (turns * 2 * math.pi)) / (2 * math.log(base))
        )
        first = max(math.floor(place(high)), 0)
        last = min(math.ceil(place(low)), dims - 1)
        ramp = (np.arange(dims // 2) - first) / max(last - first, 0.001)
        keep = 1.0 - np.clip(ramp, 0.0, 1.0)
    return (plain * keep + plain / factor * (1.0 - keep)).astype(np.float32)


def rotate(
    x: Float[Array, "b n t h"],
    positions: Int[Array, "t"],
    frequencies: Float[np.ndarray, "half"],
    *,
    interleaved: bool = False,
    magnitude: float = 1.0,
) -> Float[Array, "b n t h"]:
    """RoPE (Su 2021, eq. 34): pairs of the first 2 * half dims are rotated by position * frequency.

    Pair i is dims (2i, 2i + 1) if interleaved, as in the paper, else (i, i + half), as in GPT-NeoX
    and LLaMA. `magnitude` scales the rotated dims (YaRN's temperature).

    The pair (1, 0) at position 3 with frequency 0.5 becomes (cos 1.5, sin 1.5).
    """
    # (a, b) -> (a cos - b sin, b cos + a sin), a rotation of each pair by its angle.
    half = len(frequencies)
    angles = positions[:, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles) * magnitude, jnp.sin(angles) * magnitude
    turned, rest = x[..., : 2 * half].astype(jnp.float32), x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
        turned = turned.reshape(*x.shape[:-1], 2 * half)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return jnp.concatenate([turned.astype(x.dtype), rest], axis=-1)


def alibi_slopes(heads: int) -> Float[np.ndarray, "heads"]:
    """Each head's slope, 2^(-8i / N) for i = 1..N (Press 2021, section 3).

    8 heads get 1/2 .. 1/256. For N that is no power of two, the slopes of the power below and every
    second one of the power above, as the authors' code does.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    more = 2.0 ** (-4.0 * np.arange(1, 2 * (heads - power), 2) / power)
    return np.concatenate([slopes, more]).astype(np.float32)


def t5_buckets(
    distances: Int[Array, "*places"], *, bidirectional: bool, buckets: int, max_distance: int
) -> Int[Array, "*places"]:
    """The bias bucket of each distance, key position - query position (Raffel 2020, section 2.1).

    Half of the buckets hold one distance each, the others grow by a factor up to max_distance, as
    in the authors' code. Bidirectional ones split in two, for keys before and after the query.
    """
    offset = 0
    if bidirectional:
        buckets //= 2
        offset = jnp.where(distances > 0, buckets, 0)
        distances = jnp.abs(distances)
    else:
        distances = jnp.maximum(-distances, 0)
    # Below `exact` a bucket a distance; then log-spaced buckets up to max_distance.
    exact = buckets // 2
    ratio = jnp.maximum(distances, 1).astype(jnp.float32) / exact
    growth = jnp.log(ratio) / math.log(max_distance / exact)
    far = exact + (growth * (buckets - exact)).astype(jnp.int32)
    return offset + jnp.where(distances < exact, distances, jnp.minimum(far, buckets - 1))
