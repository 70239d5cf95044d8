"""Diffusion: the closed form of adding noise, and samplers on data whose best model is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.ops import diffusion
from transformer_lab.ops.diffusion import PROCESSES


def images(seed, rows=3):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(rows, 2, 2, 1)), jnp.float32)


def test_noise_added_step_by_step_has_the_moments_of_the_closed_form():
    mean, variance = 1.0, 0.0  # of x_t given x_0 = 1, by q(x_t | x_t-1) (Ho 2020, eq. 2)
    for t, beta in enumerate(diffusion.BETAS, 1):
        mean, variance = np.sqrt(1 - beta) * mean, (1 - beta) * variance + beta
        if t in (1, 10, 500, 1000):
            signal, level = diffusion.levels("ddpm", jnp.array([t / 1000]))
            np.testing.assert_allclose(signal.item(), mean, rtol=1e-4)
            np.testing.assert_allclose(level.item() ** 2, variance, rtol=1e-4)
    assert mean < 0.01 and abs(variance - 1) < 1e-4  # nothing is left of the image


@pytest.mark.parametrize("process", PROCESSES)
def test_a_prediction_separates_what_was_mixed_and_one_step_from_it_is_eulers(process):
    clean, noise, times = images(0), images(1), jnp.array([0.2, 0.5, 0.9])
    noisy, target = diffusion.mixed(process, clean, noise, times)
    for found, true in zip(
        diffusion.separated(process, noisy, target, times), (clean, noise), strict=True
    ):
        np.testing.assert_allclose(found, true, atol=1e-4)
    if process == "flow":
        back = diffusion.mixed(
            process, *diffusion.separated(process, noisy, target, times), times - 0.1
        )
        np.testing.assert_allclose(back[0], noisy - 0.1 * target, atol=1e-5)


def best(process, mean, deviation):
    """The prediction with the least expected error for images that are N(mean, deviation^2):
    E[image | x_t] and E[noise | x_t] of two Gaussians."""

    def predict(x, times):
        signal, level = diffusion.levels(process, times)
        off = (x - signal * mean) / (signal**2 * deviation**2 + level**2)
        clean, noise = mean + signal * deviation**2 * off, level * off
        return noise - clean if process == "flow" else noise

    return predict


@pytest.mark.parametrize("process", PROCESSES)
def test_the_sampler_carries_noise_to_a_gaussian_whose_best_model_is_known(process):
    mean, deviation, noise = 0.7, 0.3, images(2, 500)
    predict = best(process, mean, deviation)
    signal, level = (x.item() for x in diffusion.levels(process, jnp.ones(1)))
    # The exact flow is linear: it maps the quantiles of x_1 to those of the data.
    wanted = mean + deviation * (noise - signal * mean) / np.hypot(signal * deviation, level)
    errors = []
    for steps in (50, 100, 500):
        found = diffusion.sample(process, predict, noise, steps)
        errors.append(float(jnp.abs(found - wanted).max()))
    assert errors[0] > 1.7 * errors[1] > 1.7 * 4 * errors[2] and errors[2] < 0.01
    assert abs(found.mean() - mean) < 0.05 and abs(found.std() - deviation) < 0.03
    clipped = diffusion.sample(process, predict, noise, 50, clip=0.5)
    assert float(jnp.abs(clipped).max()) <= 0.5


def test_times_of_training_are_uniform_and_guidance_extrapolates():
    key = jax.random.key(0)
    for process in PROCESSES:
        times = diffusion.draw_times(process, key, 4000)
        assert 0 <= times.min() < 0.01 and 0.99 < times.max() <= 1
        np.testing.assert_allclose([times.mean(), times.var()], [1 / 2, 1 / 12], atol=0.015)
    steps = diffusion.draw_times("ddpm", key, 4000) * 1000
    np.testing.assert_allclose(steps, jnp.round(steps), atol=1e-3)
    a, b = images(0), images(1)
    for scale, wanted in ((1.0, a), (0.0, b), (3.0, b + 3 * (a - b))):
        np.testing.assert_allclose(diffusion.guided(a, b, scale), wanted, atol=1e-6)
