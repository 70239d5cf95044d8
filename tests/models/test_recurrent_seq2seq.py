"""The recurrent encoder-decoder: padding, caches, alignments, and searches over it."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.decoding import DecodeConfig, SequenceDecoder
from transformer_lab.errors import LabError
from transformer_lab.models.recurrent_seq2seq import RecurrentSeq2SeqConfig, build

CONFIG = RecurrentSeq2SeqConfig(
    layers=1, width=8, encoder_layers=1, encoder_width=4, vocab_size=19, max_length=16
)
SOURCE, TARGET = (np.random.default_rng(1).integers(4, 19, (2, n)) for n in (6, 5))
MASK = np.arange(6) < np.array([[6], [4]])
CASES = [
    ("none", False), ("additive", False), ("additive", True), ("general", True),
    ("scaled_dot", False),
]  # fmt: skip
every_case = pytest.mark.parametrize(("attention", "fed"), CASES)


@functools.cache
def make(attention, fed=False):
    """Model, variables, and (source, mask, target) -> (logits, alignment)."""
    model = build(replace(CONFIG, attention=attention, input_feeding=fed))
    params = jax.jit(model.init)(jax.random.key(0), SOURCE, MASK, TARGET)["params"]
    variables = {"params": jax.tree.map(lambda x: 2 * x, params)}  # differences that show

    @jax.jit
    def run(source, mask, target):
        out, found = model.apply(variables, source, mask, target, mutable=["intermediates"])
        return out, found["intermediates"]["weights"][0][:, 0] if found else None

    return model, variables, run


@functools.cache
def whole(attention, fed=False):
    """Logits and alignment of: the pairs, those with other padding, those whose first and those
    whose third target token is another, as one batch; of the second pair alone."""
    run, sources = make(attention, fed)[2], [SOURCE, np.where(MASK, SOURCE, 9), SOURCE, SOURCE]
    targets = [TARGET, TARGET, *(np.where(np.arange(5) == n, 5, TARGET) for n in (0, 2))]
    rows = [*map(np.concatenate, (sources, [MASK] * 4, targets))]
    logits, weights = jax.device_get(run(*rows))
    logits = np.split(logits, 4)
    weights = None if weights is None else np.split(weights, 4)
    return logits, weights, run(SOURCE[1:, :4], MASK[1:, :4], TARGET[1:])


@pytest.mark.each_run("additive-True")
@every_case
def test_38_a_sentence_alone_and_padded_gives_equal_states_attention_and_logits(attention, fed):
    (logits, wild, *_), weights, (alone, own) = whole(attention, fed)
    np.testing.assert_array_equal(logits, wild)
    np.testing.assert_allclose(logits[1], alone[0], atol=1e-5)
    if attention != "none":
        weights = weights[0]
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
        np.testing.assert_array_equal(weights[1, :, 4:], 0.0)
        np.testing.assert_allclose(weights[1, :, :4], own[0], atol=1e-5)


@pytest.mark.slow
def test_38_what_the_decoder_starts_from_is_the_same_alone_and_padded():
    model, variables, _ = make("additive")
    encode = jax.jit(lambda s, m: model.apply(variables, s, m, method="encode"))
    (padded, first), (plain, second) = (encode(SOURCE[1:, :n], MASK[1:, :n]) for n in (6, 4))
    check = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6)  # noqa: E731
    jax.tree.map(check, first, second)
    check(padded["values"][:, :4], plain["values"])


@pytest.mark.each_run("general-True")
@every_case
def test_cached_decoding_in_chunks_equals_the_full_forward(attention, fed):
    model, variables, _ = make(attention, fed)

    @jax.jit
    def in_chunks(source, mask, target):
        cache = model.apply(variables, source, mask, 5, method="init_cache")
        found = []
        for chunk in (target[:, :1], target[:, 1:2], target[:, 2:]):
            out, cache = model.apply(variables, chunk, cache, method="step")
            found.append(out)
        return jnp.concatenate(found, axis=1)

    np.testing.assert_allclose(
        in_chunks(SOURCE, MASK, TARGET), whole(attention, fed)[0][0], atol=1e-5
    )


@pytest.mark.each_run("none-False", "additive-True")
@every_case
def test_28_a_target_token_changes_no_logit_before_it(attention, fed):
    a, _, _, b = whole(attention, fed)[0]
    assert (np.asarray(a) != b).any(axis=(0, 2)).tolist() == [False, False, True, True, True]


def test_additive_attention_asks_with_the_state_before_and_luongs_with_the_one_after():
    """The first target token changes the first alignment only where the cell has read it."""
    for attention, fed in CASES[1:]:
        first, _, changed, _ = (weights[:, 0] for weights in whole(attention, fed)[1])
        assert (first == changed).all() == (attention == "additive")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "fed", "beam"), [("additive", False, 1), ("general", True, 3)]
)
def test_38_a_translation_is_the_same_alone_and_among_others(attention, fed, beam):
    model, variables, run = make(attention, fed)
    decode = DecodeConfig(beam_size=beam, batch_size=8, max_new_tokens=6, alpha=0.0)
    ids = {"eos_id": 1, "pad_id": 0, "start_id": 2}
    rng = np.random.default_rng(3)
    sources = [rng.integers(4, 19, n).tolist() for n in (3, 8, 5, 1)]
    together = SequenceDecoder(model, decode, **ids, buckets=[8])(variables, sources)
    alone = SequenceDecoder(model, decode, **ids, buckets=[3, 5])
    for source, found in zip(sources, together, strict=True):
        if len(source) in (3, 5):
            ((own, *_),) = alone(variables, [source])
            assert own.ids == found[0].ids and own.score == pytest.approx(found[0].score, abs=1e-4)
    if beam == 1:
        source, made = sources[0], together[0][0].ids
        args = jnp.array([source]), jnp.ones((1, 3), bool), jnp.array([[2, *made]])
        assert run(*args)[0][0].argmax(axis=-1).tolist()[: len(made)] == made


@pytest.mark.slow
def test_dropout_needs_its_key_and_every_parameter_has_a_gradient():
    for attention, fed in (("none", False), ("additive", True)):
        changes = {"attention": attention, "input_feeding": fed, "dropout": 0.3, "layers": 2}
        model = build(replace(CONFIG, **changes))
        variables = jax.jit(model.init)(jax.random.key(0), SOURCE, MASK, TARGET)

        @jax.jit
        def both(p, *rows, model=model):
            def loss(p):
                logits = model.apply(p, *rows, jax.random.key(4))
                return jnp.square(logits).sum(), logits

            return *jax.grad(loss, has_aux=True)(p), model.apply(p, *rows)

        gradient, logits, plain = both(variables, SOURCE, MASK, TARGET)
        assert all(np.any(g) for g in jax.tree.leaves(jax.device_get(gradient)))
        assert (np.asarray(logits) != plain).any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attention": "aditive"}, 'did you mean "additive"'),
        ({"attention": "dot", "encoder_width": 5}, "encoder's 10"),
        ({"bidirectional": True}, "model.encoder_bidirectional"),
        ({"source_vocab_size": 7}, "tie_source_target"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    with pytest.raises(LabError, match=words):
        replace(CONFIG, **change)
