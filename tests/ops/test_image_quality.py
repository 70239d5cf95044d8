"""PSNR, SSIM and Fréchet's distance against closed forms and sums written out."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab.ops.image_quality import C1, C2, frechet_distance, psnr, ssim


def test_psnr_and_ssim_of_constant_images_have_a_closed_form():
    a, b = jnp.full((1, 12, 12, 3), 0.4), jnp.full((1, 12, 12, 3), 0.5)
    np.testing.assert_allclose(psnr(a, b), [20.0], rtol=1e-4)
    np.testing.assert_allclose(psnr(a, a), [100.0])
    wanted = (2 * 0.4 * 0.5 + C1) / (0.4**2 + 0.5**2 + C1)  # no structure: luminance alone
    np.testing.assert_allclose(ssim(a, b), [wanted], rtol=2e-3)
    np.testing.assert_allclose(ssim(a, a), [1.0], rtol=1e-5)


def test_ssim_is_the_mean_over_windows_written_out():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 1, 13, 12, 1))
    line = np.exp(-0.5 * ((np.arange(11) - 5) / 1.5) ** 2)
    w = np.outer(line, line) / np.outer(line, line).sum()
    found = []
    for i in range(3):
        for j in range(2):
            x, y = a[0, i : i + 11, j : j + 11, 0], b[0, i : i + 11, j : j + 11, 0]
            mx, my = (w * x).sum(), (w * y).sum()
            vx, vy = (w * (x - mx) ** 2).sum(), (w * (y - my) ** 2).sum()
            vxy = (w * (x - mx) * (y - my)).sum()
            top = (2 * mx * my + C1) * (2 * vxy + C2)
            found.append(top / ((mx**2 + my**2 + C1) * (vx + vy + C2)))
    np.testing.assert_allclose(jax.jit(ssim)(a, b), [np.mean(found)], rtol=1e-4)


def test_frechets_distance_of_gaussians_has_a_closed_form():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    x = (x - x.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(x, rowvar=False)).T)
    assert abs(frechet_distance(x, x)) < 1e-9  # x has mean 0 and covariance 1 exactly
    np.testing.assert_allclose(frechet_distance(x, 2 * x + 1), 3 * 1 + 3 * (2 - 1) ** 2, rtol=1e-6)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    a, b = x * [1, 2, 3] @ turn, x * [2, 2, 5] @ turn  # covariances that commute
    np.testing.assert_allclose(frechet_distance(a, b), 1 + 0 + 4, rtol=1e-6)
    c = x @ rng.normal(size=(3, 3))  # and that do not: the eigenvalues of the product
    product = np.cov(a, rowvar=False) @ np.cov(c, rowvar=False)
    traces = np.cov(a, rowvar=False).trace() + np.cov(c, rowvar=False).trace()
    wanted = traces - 2 * np.sqrt(np.linalg.eigvals(product).real).sum()
    np.testing.assert_allclose(frechet_distance(a, c), wanted, rtol=1e-6)
    few = rng.normal(size=(4, 20))  # singular covariances
    assert frechet_distance(few, few) < 1e-6 < frechet_distance(few, few[:, ::-1])
