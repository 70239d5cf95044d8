"""How close images are to others: PSNR and SSIM of pairs, Fréchet's distance of sets."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

WINDOW, SIGMA = 11, 1.5  # of the Gaussian in which SSIM compares (Wang 2004, section III-C)
C1, C2 = 0.01**2, 0.03**2  # keep quotients finite; values span 1

Images = Float[Array, "b h w c"]


def psnr(a: Images, b: Images) -> Float[Array, "b"]:
    """-10 log10 of the mean squared difference, in decibels, of images from 0 to 1; at most 100.

    A difference of 0.1 everywhere gives 20 dB.
    """
    return -10 * jnp.log10(jnp.maximum(jnp.square(a - b).mean(axis=(1, 2, 3)), 1e-10))


def ssim(a: Images, b: Images) -> Float[Array, "b"]:
    """The structural similarity of images from 0 to 1 (Wang 2004, eq. 13): the mean over channels
    and over all windows of 11 x 11 pixels that lie within the image. Equal images give 1."""
    distances = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-0.5 * (distances / SIGMA) ** 2)
    weights = jnp.asarray(weights / weights.sum(), jnp.float32)

    def mean(x):  # over each window
        for axis in (1, 2):
            places = np.arange(x.shape[axis] - WINDOW + 1)[:, None] + np.arange(WINDOW)
            x = jnp.tensordot(jnp.take(x, places, axis=axis), weights, ((axis + 1,), (0,)))
        return x

    ma, mb = mean(a), mean(b)
    va, vb, both = mean(a * a) - ma**2, mean(b * b) - mb**2, mean(a * b) - ma * mb
    found = (2 * ma * mb + C1) * (2 * both + C2) / ((ma**2 + mb**2 + C1) * (va + vb + C2))
    return found.mean(axis=(1, 2, 3))


def frechet_distance(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"]) -> float:
    """The squared Fréchet distance of two sets of vectors, each taken as a Gaussian (Heusel 2017,
    eq. 6): |difference of means|^2 + trace(A + B - 2 (A B)^1/2) of the covariances A and B.

    A finite sample's distance is larger than its distribution's: compare sets of equal size.
    """
    root = _root(np.cov(a, rowvar=False))
    inner = _root(root @ np.cov(b, rowvar=False) @ root)  # its trace is that of (A B)^1/2
    means = np.square(a.mean(axis=0) - b.mean(axis=0)).sum()
    spread = a.var(axis=0, ddof=1).sum() + b.var(axis=0, ddof=1).sum()
    return float(means + spread - 2 * np.trace(inner))


def _root(matrix: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """The square root of a symmetric matrix without negative eigenvalues, up to rounding."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T
