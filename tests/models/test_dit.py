"""The diffusion transformer: what is zero at first, what a text changes, what the layout is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.errors import LabError
from transformer_lab.layers.stack import Stack
from transformer_lab.models.dit import DiT, DiTConfig
from transformer_lab.ops.norms import layer_norm

SMALL = {"layers": 2, "width": 8, "heads": 2, "head_dim": 4, "feed_forward_width": 12,
         "image_size": (4, 6), "vocab_size": 9, "max_length": 3, "channels": 1}  # fmt: skip


def inputs(rows=3):
    rng = np.random.default_rng(1)
    image = jnp.asarray(rng.normal(size=(rows, 4, 6, 1)), jnp.float32)
    tokens = jnp.asarray(rng.integers(1, 9, (rows, 3)))
    mask = jnp.arange(3) < jnp.array([3, 1, 0])[:rows, None]
    return image, jnp.array([0.1, 0.5, 0.9])[:rows], tokens, mask


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_a_conditioned_block_begins_as_the_identity_and_is_modulated_as_in_the_paper(norm):
    config = DiTConfig(**SMALL | {"layers": 1}, norm=norm, final_norm=False)
    stack, rng = Stack(config, 1, conditioned=True), np.random.default_rng(0)
    x, condition = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2, 6, 8), (2, 8)))
    params = jax.jit(stack.init)(jax.random.key(0), x, condition=condition)
    call = jax.jit(stack.apply)
    np.testing.assert_array_equal(call(params, x, condition=condition), x)
    names = {
        "/".join(k.key for k in path) for path, _ in jax.tree_util.tree_leaves_with_path(params)
    }
    assert not any("norm" in name for name in names)  # the modulation is their scale and bias
    if norm == "rms_norm":
        return
    # Peebles 2023, figure 3, written out: attention and feed-forward on modulated norms.
    tree = draw(stack, x, condition=condition)["params"]
    layer = tree["layer_0"]
    parts = jax.nn.silu(condition) @ layer["modulation"]["kernel"] + layer["modulation"]["bias"]
    shift, scale, gate, shift2, scale2, gate2 = jnp.split(parts[:, None], 6, axis=-1)
    plain = lambda y: layer_norm(y, jnp.ones(8), jnp.zeros(8), config.norm_epsilon)  # noqa: E731
    block = Stack(DiTConfig(**SMALL | {"layers": 1}, norm="none", final_norm=False), 1)
    run = jax.jit(block.apply)

    def part(name, y):  # what one sub-layer adds, with the other's parameters zero
        kept = {k: jax.tree.map(lambda v, k=k: v * (name in k), layer[k]) for k in layer}
        return run({"params": {"layer_0": kept}}, y) - y

    y = x + gate * part("attention", plain(x) * (1 + scale) + shift)
    y = y + gate2 * part("feed_forward", plain(y) * (1 + scale2) + shift2)
    found = call({"params": tree}, x, condition=condition)
    np.testing.assert_allclose(found, y, rtol=2e-4, atol=2e-4)


def test_it_predicts_zero_at_first_and_reads_time_text_and_every_patch():
    for more in ({}, {"text_layers": 1, "scan_layers": True}):
        model = DiT(DiTConfig(**SMALL, **more))
        image, times, tokens, mask = inputs()
        params, call = jax.jit(model.init)(jax.random.key(0), *inputs(1)), jax.jit(model.apply)
        assert not np.any(call(params, image, times, tokens, mask))
        params = draw(model, *inputs(1), size=0.3)
        base = call(params, image, times, tokens, mask)
        assert base.shape == image.shape
        assert bool(
            (call(params, image, times + 0.05, tokens, mask) != base).any(axis=(1, 2, 3)).all()
        )
        changed = call(params, image, times, (tokens + 1) % 9, mask) != base
        assert changed.any(axis=(1, 2, 3)).tolist() == [True, True, False]  # no real token: no text
        turned = call(params, image, times, tokens[:, ::-1], mask.at[0].set(True))
        same = np.allclose(turned[0], base[0], atol=1e-5)
        assert same != bool(more)  # without layers over the text the order of words says nothing
        far = call(params, image.at[:, 0, 0].add(1.0), times, tokens, mask)
        assert bool((far[:, 3, 5] != base[:, 3, 5]).all())


def test_settings_that_cannot_be_are_refused():
    for change in ({"norm_place": "post"}, {"width": 6}, {"block": "conformer"}):
        with pytest.raises(LabError, match="a diffusion transformer needs model.norm_place"):
            DiTConfig(**SMALL | change)
    with pytest.raises(LabError, match="no multiple of patch_size"):
        DiTConfig(**SMALL | {"patch_size": (3, 3)})
