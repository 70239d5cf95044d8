"""Codes of pictures from texts: the cache, the two ways, and what each may see."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.errors import LabError
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.models.picture_codes import PictureCodes, PictureCodesConfig
from transformer_lab.models.vqvae import VQVAEConfig

STACK = {"layers": 1, "width": 8, "heads": 2, "head_dim": 4, "feed_forward_width": 12}
IMAGE = VQVAEConfig(**STACK, image_size=(4, 4), patch_size=(2, 2), codes=5, code_width=3)
TOKENS, CODES = jnp.array([[3, 1, 0], [2, 2, 6]]), jnp.array([[0, 4, 2, 1], [3, 3, 0, 2]])


def model_of(mask):
    text = DecoderConfig(**STACK, max_length=7, vocab_size=7, mask=mask)
    model = PictureCodes(PictureCodesConfig(IMAGE, text))
    return model, draw(model, TOKENS, CODES)


def test_in_order_each_code_sees_the_text_and_the_codes_before_it_and_the_cache_agrees():
    model, params = model_of("causal")
    call = jax.jit(model.apply)
    base = call(params, TOKENS, CODES)
    assert base.shape == (2, 4, 5)
    for place in range(4):
        other = call(params, TOKENS, CODES.at[:, place].set((CODES[:, place] + 1) % 5))
        same = jnp.abs(other - base).max(axis=(0, 2)) < 1e-6
        assert same.tolist() == [i <= place for i in range(4)]
    assert (jnp.abs(call(params, TOKENS.at[:, 0].add(1), CODES) - base).max(axis=(0, 2)) > 0).all()
    logits, cache = jax.jit(partial(model.apply, method="start"))(params, TOKENS)
    step = jax.jit(partial(model.apply, method="step"))
    for i in range(4):
        np.testing.assert_allclose(logits, base[:, i], rtol=1e-4, atol=1e-5)
        logits, cache = step(params, CODES[:, i], cache)


def test_in_parallel_every_code_sees_all_others_and_hidden_ones_have_their_own_vector():
    model, params = model_of("prefix")
    call = jax.jit(model.apply)
    base, hidden = call(params, TOKENS, CODES), call(params, TOKENS, CODES.at[:, 2].set(5))
    assert (jnp.abs(hidden - base).max(axis=(0, 2)) > 1e-6).all()
    assert params["params"]["text"]["embedding"]["embedding"].shape == (7 + 5 + 1, 8)


def test_a_picture_without_codes_or_without_room_for_its_text_is_refused():
    text = DecoderConfig(**STACK, max_length=4)
    with pytest.raises(LabError, match="model.text.max_length = 4 more than the 4 codes"):
        PictureCodesConfig(IMAGE, text)
