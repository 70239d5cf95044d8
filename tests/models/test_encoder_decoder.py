"""The 2017 encoder-decoder: causality, cache, padding, size, number types."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_leaves_with_path as tree_leaves

from tests.tiny import draw
from transformer_lab.errors import LabError
from transformer_lab.models import parameter_shapes, presets
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig, build
from transformer_lab.ops.visibility import Visible

CONFIG = EncoderDecoderConfig(
    layers=2,
    decoder_layers=1,
    width=16,
    heads=4,
    decoder_heads=2,
    head_dim=4,
    decoder_head_dim=6,
    feed_forward_width=24,
    vocab_size=23,
    max_length=12,
)
SOURCE, TARGET = (jnp.asarray(np.random.default_rng(1).integers(4, 23, (2, n))) for n in (6, 5))
MASK = jnp.asarray(np.arange(6) < np.array([[6], [4]]))
POSITIONS = ["sinusoidal", "sinusoidal_halves", "learned", "none", "t5"]
NINES = np.where(MASK, SOURCE, 9)


@cache
def make(**changes):
    """A model, its parameters, and its compiled call."""
    model = build(replace(CONFIG, **changes))
    params = draw(model, SOURCE, MASK, TARGET, size=1 / 3)
    return model, params, jax.jit(partial(model.apply, params))


@pytest.mark.each_run("learned", "t5")
@pytest.mark.parametrize("positions", POSITIONS)
def test_a_token_changes_no_logit_before_it_and_both_sides_of_an_encoder(positions):
    model, params, _ = make(positions=positions)

    def decode(noise):
        def logits(m):
            memory = m.encode(SOURCE[:1], MASK[:1])
            x = m._embed(TARGET[:1], "target", jnp.arange(5)[None], None) + noise
            states = m.decoder(x, memory=memory, memory_seen=Visible(keys=MASK[:1]))
            return m.logits(states)[0]

        return model.apply(params, method=logits)

    def encode(noise):
        def states(m):
            x = m._embed(SOURCE[:1], "source", jnp.arange(6)[None], None)
            return m.encoder(x + noise)[0]

        return model.apply(params, method=states)

    @jax.jit
    def moved(of_target, of_source):
        """|d out_t / d x_s| for each pair (t, s), through the embedding's output."""
        jacobians = jax.jacrev(decode)(of_target), jax.jacrev(encode)(of_source)
        return [jnp.abs(one).sum(axis=(1, 3)) for one in jacobians]

    decoder, encoder = moved(jnp.zeros((5, 16)), jnp.zeros((6, 16)))
    np.testing.assert_array_equal(decoder > 0, np.tril(np.ones((5, 5), bool)))
    assert (encoder > 0).all()


def test_without_its_causal_mask_a_logit_depends_on_what_comes():
    _, _, run = make(causal=False)
    logits = [run(SOURCE, MASK, target) for target in (TARGET, TARGET + (np.arange(5) == 4))]
    assert (np.abs(np.subtract(*logits)).max(axis=-1) > 1e-6).all()


@pytest.mark.each_run("t5")
@pytest.mark.parametrize("positions", POSITIONS)
def test_cached_decoding_equals_the_full_forward_in_any_chunks(positions):
    model, params, run = make(positions=positions, kv_heads=2, decoder_kv_heads=1)
    full = run(SOURCE, MASK, TARGET)
    empty = jax.jit(partial(model.apply, method="init_cache"), static_argnums=3)
    step = jax.jit(partial(model.apply, method="step"))
    for chunks in ((1, 1, 1, 1, 1), (2, 2, 1), (5,)):
        cache, logits = empty(params, SOURCE, MASK, 7), []
        for part in np.split(np.asarray(TARGET), np.cumsum(chunks)[:-1], axis=1):
            out, cache = step(params, part, cache)
            logits.append(out)
        np.testing.assert_allclose(np.concatenate(logits, axis=1), full, atol=1e-5)
        assert cache["index"] == 5


def test_source_padding_is_never_read():
    _, _, run = make()
    padded, other = run(SOURCE, MASK, TARGET), run(NINES, MASK, TARGET)
    np.testing.assert_array_equal(padded, other)
    alone = run(SOURCE[1:, :4], MASK[1:, :4], TARGET[1:])
    np.testing.assert_allclose(padded[1], alone[0], atol=1e-5)


def test_beyond_the_context_is_refused():
    model, params, _ = make()
    with pytest.raises(LabError, match="max_length"):
        model.apply(params, SOURCE, MASK, 13, method="init_cache")
    with pytest.raises(LabError, match="13 tokens exceeds"):
        model.apply(params, SOURCE, MASK, jnp.zeros((2, 13), int))


def parameters(v, d, f, layers):
    """Closed form of the paper's model: shared embedding, biases everywhere, post-norm."""
    attention = 4 * d * d + 4 * d
    feed_forward = 2 * d * f + f + d
    encoder = attention + feed_forward + 2 * 2 * d
    decoder = 2 * attention + feed_forward + 3 * 2 * d
    return v * d + layers * (encoder + decoder)


def count(config):
    return sum(x.size for x in jax.tree.leaves(parameter_shapes("encoder_decoder", config)))


@pytest.mark.slow
def test_every_preset_has_the_closed_forms_parameters_near_the_papers():
    vaswani = {k: p for k, p in presets.ENCODER_DECODERS.items() if k.startswith("transformer")}
    assert len(vaswani) >= 4
    for preset in vaswani.values():
        c = preset.config
        form = parameters(c.vocab_size, c.width, c.feed_forward_width, c.layers)
        assert count(c) == form
        assert preset.published is None or abs(form / preset.published - 1) < 0.04


def test_the_small_closed_form():
    config = EncoderDecoderConfig(
        layers=3, width=24, heads=3, head_dim=8, feed_forward_width=40, vocab_size=31
    )
    assert count(config) == parameters(31, 24, 40, 3)


def test_untied_embeddings_and_head_add_their_tables():
    tied = count(CONFIG)
    assert count(replace(CONFIG, tie_head=False)) == tied + 23 * 16
    assert count(replace(CONFIG, tie_head=False, head_bias=True)) == tied + 23 * 16 + 23
    untied = replace(CONFIG, tie_source_target=False, source_vocab_size=31)
    assert count(untied) == tied + 31 * 16
    with pytest.raises(LabError, match="tie_source_target"):
        replace(CONFIG, source_vocab_size=31)


def test_t5_has_one_table_of_buckets_a_stack_no_bias_and_scales_a_tied_head_only():
    config = replace(presets.ENCODER_DECODERS["t5_small"].config, layers=2, vocab_size=23)
    shapes = parameter_shapes("encoder_decoder", config)
    flat = {"/".join(k.key for k in path): x.shape for path, x in tree_leaves(shapes)}
    tables = [path for path in flat if "score_bias" in path]
    assert tables == ["decoder/score_bias/embedding", "encoder/score_bias/embedding"]
    assert not any(path.endswith("bias") for path in flat)
    for name, preset in presets.ENCODER_DECODERS.items():
        if "t5" in name:
            assert preset.config.scale_output == preset.config.tie_head == ("1.1" not in name
                and name[0] != "m")  # fmt: skip
    assert CONFIG.tie_head
    scaled, plain = (make(**more)[2](SOURCE, MASK, TARGET) for more in ({"scale_output": True}, {}))
    np.testing.assert_allclose(scaled * 4, plain, atol=1e-5)


def test_bfloat16_computes_in_it_and_keeps_parameters_and_logits_float32():
    model, _, _ = make(dtype="bfloat16")
    shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, MASK, TARGET)
    assert {x.dtype for x in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}
    _, params, run = make()
    call = lambda p: model.apply(p, SOURCE, MASK, TARGET)  # noqa: E731
    gradient = jax.eval_shape(jax.grad(lambda p: call(p).sum()), params)
    assert {x.dtype for x in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    logits, exact = jax.jit(call)(params), run(SOURCE, MASK, TARGET)
    assert logits.dtype == jnp.float32 and np.abs(exact).max() > 0.5
    np.testing.assert_allclose(logits, exact, atol=0.1)
    assert (logits != exact).any()


@pytest.mark.parametrize("implementation", ["own", "xla", "chunked"])
def test_attention_implementations_agree(implementation):
    want = make()[2](SOURCE, MASK, TARGET)
    found = make(attention_implementation=implementation)[2](SOURCE, MASK, TARGET)
    np.testing.assert_allclose(found, want, atol=1e-5)


@pytest.mark.each_run("learned", "t5", "rope")
@pytest.mark.parametrize("positions", [*POSITIONS, "rope", "alibi"])
def test_pairs_that_share_a_row_get_the_logits_they_have_alone(positions):
    _, _, run = make(positions=positions)
    apart = run(SOURCE, MASK, TARGET)
    # Row: the first source of 6 and the second of 4 tokens, two of padding; both targets.
    source = np.concatenate([SOURCE[0], SOURCE[1, :4], [0, 0]])[None]
    target = np.concatenate([TARGET[0], TARGET[1], [0, 0]])[None]
    segments = np.array([[1] * 6 + [2] * 4 + [0] * 2]), np.array([[1] * 5 + [2] * 5 + [0] * 2])
    packed = run(source, segments[0] > 0, target, None, *segments)[0]
    np.testing.assert_allclose(packed[:10].reshape(2, 5, -1), apart, atol=1e-5)
    assert np.isfinite(packed).all()
