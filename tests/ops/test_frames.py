"""Frames between two others: kernels by hand, and what they begin with."""

import jax.numpy as jnp
import numpy as np

from transformer_lab.ops.frames import between, numbers_of

SIZE = 3


def test_zeros_give_the_mean_and_a_kernel_moves_by_whole_pixels():
    first, last = jnp.asarray(np.random.default_rng(0).normal(size=(2, 1, 4, 5, 2)), jnp.float32)
    numbers = np.zeros((1, 4, 5, numbers_of(SIZE)), np.float32)
    mean = between(first, last, jnp.asarray(numbers), SIZE)
    np.testing.assert_allclose(mean, (first + last) / 2, atol=1e-6)
    numbers[..., 1], numbers[..., 2] = -1, 1  # the first frame's rows: one pixel from below
    numbers[..., -1] = 0.5  # of the last frame nothing
    found = between(first, last, jnp.asarray(numbers), SIZE)
    np.testing.assert_allclose(found[:, :-1], first[:, 1:], atol=1e-6)
    np.testing.assert_allclose(found[:, -1], first[:, -1], atol=1e-6)


def test_each_pixel_has_kernels_of_its_own():
    """Pixel by pixel; with the means taken out, grey stays as it is whatever the numbers."""
    rng = np.random.default_rng(1)
    frames = rng.normal(size=(2, 4, 5, 1)).astype(np.float32)
    numbers = rng.normal(size=(4, 5, numbers_of(SIZE))).astype(np.float32)

    def moved(frame, kernels, axis):
        out = np.zeros_like(frame)
        for y, x in np.ndindex(4, 5):
            kernel = kernels[y, x] - kernels[y, x].mean() + [0, 1, 0]
            for i, weight in zip((-1, 0, 1), kernel, strict=True):
                place = (np.clip(y + i, 0, 3), x) if axis == 0 else (y, np.clip(x + i, 0, 4))
                out[y, x] += weight * frame[place]
        return out

    parts = np.split(numbers[..., :-1], 4, axis=-1)
    both = [moved(moved(frames[k], parts[k], 0), parts[2 + k], 1) for k in (0, 1)]
    share = 0.5 + numbers[..., -1:]
    expected = share * both[0] + (1 - share) * both[1]
    batch = [jnp.asarray(x)[None] for x in (*frames, numbers)]
    np.testing.assert_allclose(between(*batch, SIZE)[0], expected, atol=1e-5)
    grey = jnp.full((1, 4, 5, 1), 0.3)
    np.testing.assert_allclose(between(grey, grey, batch[2], SIZE), 0.3, atol=1e-5)
