"""The VQ-VAE: its codebook by hand, the gradient straight through, and dead codes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from tests.tiny import draw
from transformer_lab.layers.told import listened
from transformer_lab.models.vqvae import VQVAE, VQVAEConfig

SMALL = {"layers": 1, "width": 8, "heads": 2, "head_dim": 4, "feed_forward_width": 12,
         "image_size": (4, 4), "patch_size": (2, 2), "codes": 5, "code_width": 3,
         "channels": 1}  # fmt: skip


def trained_once(config, params, images, rows=None):
    """The outputs of a training call, and what the model told."""
    call = listened(lambda p: VQVAE(config).apply({"params": p}, images, jax.random.key(3), rows))
    return jax.jit(call)(params)


def setting(**more):
    config = VQVAEConfig(**SMALL | more)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4, 4, 1)), jnp.float32)
    params = draw(VQVAE(config), images[:1])["params"]
    if config.codes:
        params["batch_stats"]["codebook"]["counts"] = jnp.array([1.0, 2.0, 3.0, 4.0, 5.0])
    return config, params, images


def test_averages_of_the_codebook_are_those_written_out_and_padding_enters_none():
    config, params, images = setting(decay=0.9, revived_below=0.0)
    book = params["batch_stats"]["codebook"]
    rows = jnp.array([True] * 5 + [False])
    out, told = trained_once(config, params, images, rows)
    model = VQVAE(config)
    narrow = partial(model.apply, method=lambda m, x: m.narrow(m._states(x, None)))
    z = np.asarray(jax.jit(narrow)({"params": params}, images))
    codes = np.asarray(book["sums"] / book["counts"][:, None])
    ids = np.square(z[:, :, None] - codes).sum(axis=-1).argmin(axis=-1)
    np.testing.assert_array_equal(out["codes"], ids)
    found = jax.jit(partial(model.apply, method="codes"))({"params": params}, images)
    np.testing.assert_array_equal(found, ids)
    flat, used = z[:5].reshape(-1, 3), ids[:5].reshape(-1)
    counts, sums = np.zeros(5), np.zeros((5, 3))
    for vector, code in zip(flat, used, strict=True):
        counts[code] += 1
        sums[code] += vector
    new = told["statistics"]["codebook"]
    for name, batch in (("counts", counts), ("sums", sums)):
        total, weight = new[name]
        assert weight == 20
        np.testing.assert_allclose(
            total / weight, 0.9 * book[name] + 0.1 * batch, rtol=1e-4, atol=1e-5
        )
    away, weight, scaled = told["losses"]["commitment"]
    np.testing.assert_allclose(away, np.square(flat - codes[used]).mean(axis=1).sum(), rtol=1e-4)
    np.testing.assert_allclose([weight, scaled / away], [20, 0.25], rtol=1e-5)
    made = jax.jit(partial(model.apply, method="pictures"))({"params": params}, out["codes"])
    np.testing.assert_allclose(made, out["images"], rtol=1e-4, atol=1e-4)


def test_the_gradient_passes_the_codebook_as_if_it_were_not_there():
    config, params, images = setting()
    model = VQVAE(config)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=images.shape), jnp.float32)

    def loss(params, shift):  # of the images made from the states before the codebook + shift
        def whole(m, x):
            z = m.narrow(m._states(x, None)) + shift
            q, _ = m.codebook(z, None, None)
            return m._made(m.wide(q), (4, 4), None)

        return (model.apply({"params": params}, images, method=whole) * weights).sum()

    def after(params, q):  # the same from the codes' vectors
        whole = lambda m: m._made(m.wide(q), (4, 4), None)  # noqa: E731
        return (model.apply({"params": params}, method=whole) * weights).sum()

    codes = model.apply({"params": params}, images, method="codes")
    book = params["batch_stats"]["codebook"]
    q = (book["sums"] / book["counts"][:, None])[codes]
    through = jax.jit(jax.grad(loss, 1))(params, jnp.zeros((6, 4, 3)))
    np.testing.assert_allclose(
        through, jax.jit(jax.grad(after, 1))(params, q), rtol=1e-4, atol=1e-5
    )
    assert np.any(through)


def test_a_code_that_is_never_used_moves_to_a_vector_of_the_batch():
    config, params, images = setting(revived_below=0.5)
    book = params["batch_stats"]["codebook"]
    book["counts"] = jnp.array([4.0, 4.0, 4.0, 4.0, 0.1])
    out, told = trained_once(config, params, images)
    new = {
        name: np.asarray(total / weight)
        for name, (total, weight) in told["statistics"]["codebook"].items()
    }
    moved = new["sums"][4] / new["counts"][4]
    z = VQVAE(config).apply(
        {"params": params}, images, method=lambda m, x: m.narrow(m._states(x, None))
    )
    assert np.abs(np.asarray(z).reshape(-1, 3) - moved).max(axis=1).min() < 1e-5
    np.testing.assert_allclose(new["counts"][4], book["counts"].mean(), rtol=1e-5)


def test_without_codes_it_maps_images_to_images_of_any_multiple_of_the_patch():
    config, _, _ = setting(codes=0)
    large = jnp.asarray(np.random.default_rng(2).normal(size=(1, 6, 8, 1)), jnp.float32)
    out = jax.jit(VQVAE(config).apply)({"params": draw(VQVAE(config), large)["params"]}, large)
    assert out.keys() == {"images"} and out["images"].shape == large.shape
