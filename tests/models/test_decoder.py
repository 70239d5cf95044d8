"""The decoder-only models: causality, cache, prefix, packing and padding, of every kind."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.errors import LabError
from transformer_lab.layers.config import CHOICES, RELATIVE
from transformer_lab.layers.stack import Stack
from transformer_lab.models.decoder import DecoderConfig, build, positions_within
from transformer_lab.ops.losses import cross_entropy
from transformer_lab.ops.visibility import Visible
from transformer_lab.training.config import MeshConfig
from transformer_lab.training.mesh import make_mesh, shardings

CONFIG = DecoderConfig(
    layers=1, width=12, heads=4, head_dim=6, feed_forward_width=20, vocab_size=23, max_length=10,
    dropout=0.0,
)  # fmt: skip
FIRST = np.array([5, 17, 9, 20, 11, 6])
# A row for each token that is changed: every test has one shape, for operations compile slowly.
TOKENS = np.array([FIRST, *np.where(np.eye(6, dtype=bool), (FIRST + 7) % 23, FIRST)])
SAME = jnp.asarray(TOKENS)
WINDOW = 3  # half of the six tokens: its attention goes block by block
KINDS = {
    **{kind: {"positions": kind} for kind in CHOICES["positions"]},
    **{f"{kind}_window": {"positions": kind, "window": WINDOW} for kind in RELATIVE},
    "every_layer": {"layers": 2, "positions": "sinusoidal", "positions_every_layer": True},
    "grouped_parallel": {"layers": 2, "kv_heads": 2, "block": "parallel", "window": WINDOW},
    "grouped_two_norms": {"positions": "rope", "kv_heads": 2, "block": "parallel_two_norms"},
    "deep": {"layers": 2, "norm_place": "deep", "norm": "rms_norm", "activation": "swiglu"},
    "narrow": {"embedding_width": 7, "embedding_norm": True, "tie_head": False, "head_bias": True},
}


@cache
def make(kind):
    """Model, parameters, and the logits of TOKENS in one pass."""
    model = build(replace(CONFIG, **KINDS[kind]))
    params = draw(model, TOKENS)
    return model, params, np.asarray(jax.jit(model.apply)(params, TOKENS))


def moved(out):
    """[T, S]: whether the other token at s moves the output at t."""
    out = np.asarray(out)
    return np.abs(out[1:] - out[:1]).max(axis=-1).T > 1e-6


def reach(config, t):
    """[T, S]: what a causal stack may depend on."""
    distance = np.arange(t)[:, None] - np.arange(t)
    furthest = config.layers * (config.window - 1) if config.window else t
    return (distance >= 0) & (distance <= furthest)


def stepped(model, params, state, tokens, chunks):
    """The logits of tokens by steps of so many over a cache, as a list; the cache."""
    step, logits = jax.jit(partial(model.apply, method="step")), []
    for part in np.split(tokens, np.cumsum(chunks)[:-1], axis=1):
        out, state = step(params, part, state)
        logits.append(out)
    return logits, state


def cached(model, params, chunks):
    """Logits of TOKENS by steps of so many tokens over an empty cache; the cache."""
    empty = jax.jit(lambda params: model.apply(params, 7, 8, method="init_cache"))
    logits, state = stepped(model, params, empty(params), TOKENS, chunks)
    return np.concatenate(logits, axis=1), state


def continued(model, params, pads):
    """Logits of TOKENS by a prefill of 6 places, `pads` of them padding, and 2 steps; the cache."""
    places = np.arange(8) - pads[:, None]
    rows = np.take_along_axis(TOKENS, places.clip(0, 5), axis=1)
    prefill = jax.jit(partial(model.apply, length=8, method="prefill"))
    first, state = prefill(params, rows[:, :6], np.int32(places[:, :6] >= 0))
    rest, state = stepped(model, params, state, rows[:, 6:], (1, 1))
    found = (pads[:, None] + np.arange(6))[..., None]
    return np.take_along_axis(np.concatenate([first, *rest], axis=1), found, axis=1), state


@pytest.mark.each_run(
    "learned",
    "rope",
    "alibi_window",
    "t5",
    "transformer_xl_window",
    "every_layer",
    "grouped_parallel",
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_changes_no_logit_before_it_and_all_after_it(kind):
    model, _, full = make(kind)
    np.testing.assert_array_equal(moved(full), reach(model.config, 6))


def test_without_its_causal_mask_a_pass_sees_what_comes_and_a_cached_step_cannot():
    model = build(replace(CONFIG, positions="rope", causal=False))
    params = draw(model, TOKENS)
    full = jax.jit(model.apply)(params, TOKENS)
    assert moved(full).all()
    steps, _ = cached(model, params, [1] * 6)
    np.testing.assert_array_equal(moved(steps), reach(model.config, 6))
    assert np.abs(steps - full)[:, :-1].max() > 0.1


def test_no_logit_has_a_gradient_to_a_later_token():
    model, params, _ = make("rope")

    def logits(noise):
        run = lambda m: m.logits(m.decoder(m.embedding(SAME[:1]) + noise))[0]  # noqa: E731
        return model.apply(params, method=run)

    jacobian = jnp.abs(jax.jit(jax.jacrev(logits))(jnp.zeros((6, 12)))).sum(axis=(1, 3))
    np.testing.assert_array_equal(jacobian > 0, np.tril(np.ones((6, 6), bool)))


@pytest.mark.parametrize("kind", ["none", *RELATIVE])
def test_a_token_changes_both_sides_of_an_encoder(kind):
    x = np.float32(np.random.default_rng(1).normal(size=(23, 12)))[TOKENS]
    stack = Stack(replace(CONFIG, positions=kind), 1)
    assert moved(jax.jit(stack.apply)(draw(stack, x), x)).all()


@pytest.mark.parametrize("positions", ["learned", "rope", "t5", "transformer_xl"])
def test_a_prefix_sees_both_ways_and_what_follows_is_causal(positions):
    model = build(replace(CONFIG, positions=positions, mask="prefix"))
    params, prefix = draw(model, TOKENS), np.arange(6) < 4
    full = jax.jit(model.apply)(params, TOKENS, None, None, np.tile(prefix, (7, 1)))
    np.testing.assert_array_equal(moved(full), np.tril(np.ones((6, 6))) + prefix > 0)
    # A prompt is a prefix, and what is generated after it is not.
    logits, _ = continued(model, params, np.full(7, 2))
    np.testing.assert_allclose(logits, full, atol=1e-4)


def test_a_prefix_is_seen_by_its_own_document_alone():
    model, params, _ = make("rope")
    segments, prefix = np.array([1, 1, 2, 2, 2, 0]), np.array([1, 0, 1, 1, 0, 0], bool)
    rows = (np.tile(x, (7, 1)) for x in (segments, prefix))
    out = jax.jit(model.apply)(params, TOKENS, None, *rows)
    want = (np.tril(np.ones((6, 6))) + prefix) * (segments[:, None] == segments) > 0
    np.testing.assert_array_equal(moved(out)[:5, :5], want[:5, :5])


@pytest.mark.each_run(
    "learned",
    "rope",
    "alibi_window",
    "t5",
    "transformer_xl_window",
    "every_layer",
    "grouped_parallel",
)
@pytest.mark.parametrize("kind", KINDS)
def test_cached_decoding_equals_the_full_forward_in_chunks_of_1_and_2(kind):
    model, params, full = make(kind)
    logits, state = cached(model, params, [1, 1, 2, 2])
    np.testing.assert_allclose(logits, full, atol=1e-4)
    assert state["index"] == 6


@pytest.mark.parametrize("kind", ["rope", "t5_window"])
def test_cached_decoding_equals_the_full_forward_in_one_chunk(kind):
    model, params, full = make(kind)
    np.testing.assert_allclose(cached(model, params, [6])[0], full, atol=1e-4)


@pytest.mark.each_run(
    "learned",
    "rope",
    "alibi_window",
    "t5",
    "transformer_xl_window",
    "every_layer",
    "grouped_parallel",
)
@pytest.mark.parametrize("kind", KINDS)
def test_prefill_with_padding_on_the_left_and_then_steps_equal_the_full_forward(kind):
    """The prompts have 6 and 4 tokens; 6 are more than a window, whose cache does not grow."""
    model, params, full = make(kind)
    logits, state = continued(model, params, 2 * (np.arange(7) % 2))
    np.testing.assert_allclose(logits, full, atol=1e-4)
    shape = (7, model.config.key_value_heads, model.config.window or 8, 6)
    assert {x.shape for x in jax.tree.leaves(state["layers"])} == {shape}


@pytest.mark.each_run(
    "learned",
    "rope",
    "alibi_window",
    "t5",
    "transformer_xl_window",
    "every_layer",
    "grouped_parallel",
)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_documents_have_the_logits_of_each_alone(kind):
    model, params, full = make(kind)
    rows = np.concatenate([TOKENS[::-1, :2], TOKENS[:, :3], TOKENS[:, :1]], axis=1)
    got = jax.jit(model.apply)(params, rows, segments=np.tile([1, 1, 2, 2, 2, 0], (7, 1)))
    np.testing.assert_allclose(got[::-1, :2], full[:, :2], atol=1e-4)
    np.testing.assert_allclose(got[:, 2:5], full[:, :3], atol=1e-4)


def test_positions_count_from_the_first_token_of_each_segment():
    segments = jnp.array([[0, 0, 1, 1, 1, 2, 2, 0], [1, 2, 3, 3, 4, 4, 4, 4]])
    found = positions_within(segments, 8)
    assert found[0, 2:7].tolist() == [0, 1, 2, 0, 1]
    assert found[1].tolist() == [0, 0, 0, 1, 0, 1, 2, 3]
    assert positions_within(None, 3).tolist() == [[0, 1, 2]]


def test_padding_is_attended_by_nobody_and_a_segment_by_itself():
    segments = jnp.array([[1, 2, 2, 0, 0]])
    seen = Visible(query_segments=segments, key_segments=segments)
    (mask,) = seen.dense(jnp.arange(5), jnp.arange(5))[0]
    want = np.zeros((5, 5), bool)
    want[0, 0] = want[1:3, 1:3] = True
    np.testing.assert_array_equal(mask, want)


@pytest.mark.parametrize("implementation", ["own", "xla", "chunked"])
def test_a_row_of_padding_alone_is_finite_and_leaves_the_other_rows_bit_equal(implementation):
    _, params, _ = make("learned")
    model = build(replace(CONFIG, attention_implementation=implementation))

    def loss(params, segments):
        out = model.apply(params, SAME[:2], segments=segments)
        return out[0].sum() + 0.0 * out[1].sum(), out

    gradient = jax.jit(jax.grad(loss, has_aux=True))
    empty, out = gradient(params, jnp.array([[1] * 6, [0] * 6]))
    full, other = gradient(params, jnp.ones((2, 6), jnp.int32))
    np.testing.assert_array_equal(out[0], other[0])
    assert np.isfinite(out).all() and (out[1] != other[1]).any()
    for ours, theirs in zip(jax.tree.leaves(empty), jax.tree.leaves(full), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-5)


def test_rows_that_fill_the_table_up_change_no_loss_and_may_be_sharded():
    _, params, full = make("learned")
    model = build(replace(CONFIG, vocab_multiple=8))
    shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS)
    assert shapes["params"]["embedding"]["embedding"].shape == (24, 12)
    tables = dict(params["params"])
    more = np.full((1, 12), 5.0, np.float32)
    tables["embedding"] = {"embedding": np.concatenate([tables["embedding"]["embedding"], more])}
    logits = jax.jit(model.apply)({"params": tables}, TOKENS)
    np.testing.assert_allclose(logits, full, atol=1e-5)
    assert logits.shape == (7, 6, 23)

    def loss(tables):
        return cross_entropy(model.apply({"params": tables}, SAME), SAME).sum()

    mesh = make_mesh(MeshConfig(data=1, tensor=8))
    layout = shardings(tables, mesh, "^embedding/embedding$=tensor,-")
    table = layout["embedding"]["embedding"]
    assert table.shard_shape((24, 12)) == (3, 12)
    sharded, gradient = jax.jit(jax.value_and_grad(loss))(jax.device_put(tables, layout))
    np.testing.assert_allclose(sharded, cross_entropy(jnp.asarray(full), SAME).sum(), rtol=1e-6)
    assert not gradient["embedding"]["embedding"][23].any()
    assert gradient["embedding"]["embedding"][:23].any(axis=1).all()


def test_beyond_the_context_is_refused():
    model, params, _ = make("learned")
    with pytest.raises(LabError, match="11 tokens exceeds model.max_length = 10"):
        model.apply(params, jnp.zeros((1, 11), jnp.int32))
    with pytest.raises(LabError, match="max_length"):
        model.apply(params, 1, 11, method="init_cache")
    shape = jax.eval_shape(lambda: model.apply(params, jnp.zeros((1, 10), jnp.int32)))
    assert shape.shape == (1, 10, 23)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mask": "causl"}, 'model.mask = "causl"'),
        ({"mask": "prefix", "window": 4}, "do not go together"),
        ({"vocab_multiple": 0}, "model.vocab_multiple = 0"),
        ({"positions": "rope", "rope_dims": 5}, "model.rope_dims = 5"),
        ({"window": -1}, "model.window = -1"),
        ({"positions": "rop"}, 'did you mean "rope"'),
    ],
)
def test_impossible_settings_are_refused_in_one_line(settings, words):
    with pytest.raises(LabError, match=words) as info:
        replace(CONFIG, **settings)
    assert "\n" not in str(info.value)


def test_a_model_without_a_vocabulary_is_refused():
    with pytest.raises(LabError, match="vocab_size is not set"):
        build(replace(CONFIG, vocab_size=None))
