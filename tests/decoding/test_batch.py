"""Decoding many sources with a real model."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.decoding.toy import EOS, PAD
from transformer_lab.decoding import DecodeConfig, Hypothesis, SequenceDecoder
from transformer_lab.errors import LabError
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig, build

START = 2
CONFIG = EncoderDecoderConfig(
    layers=1,
    width=16,
    heads=2,
    head_dim=8,
    feed_forward_width=24,
    vocab_size=13,
    max_length=16,
    head_bias=True,
    tie_head=False,
)
BEAM = DecodeConfig(beam_size=3, n_best=2, batch_size=8, banned_tokens=(PAD,))
GREEDY = DecodeConfig(batch_size=8, banned_tokens=(PAD,))


@pytest.fixture(scope="module")
def params():
    ids, mask = np.ones((1, 3), int), np.ones((1, 3), bool)
    init = jax.jit(build(CONFIG).init)
    drawn = jax.device_get(init(jax.random.key(0), ids, mask, ids)["params"])
    head = drawn["head"]["embedding"]
    drawn["head"]["embedding"] = 4 * head  # opinionated, so that sentences differ
    drawn["head_bias"] = np.float32(np.arange(13) == EOS)
    return {"params": drawn}


@pytest.fixture(scope="module")
def sources():
    """Lengths 1 to 16, two of each, none in order."""
    rng = np.random.default_rng(3)
    lengths = rng.permutation([*range(1, 17)] * 2)
    return [rng.integers(3, 13, n).tolist() for n in lengths]


def make(decode=BEAM, model=CONFIG, **options) -> SequenceDecoder:
    ids = {"eos_id": EOS, "pad_id": PAD, "start_id": START}
    return SequenceDecoder(build(model), decode, **ids, **options)


@pytest.fixture(scope="module")
def decoder():
    return make()


@pytest.fixture(scope="module")
def greedy_decoder():
    return make(GREEDY, buckets=[8])


@pytest.fixture(scope="module")
def sampling_decoder():
    return make(replace(GREEDY, temperature=1.5), buckets=[8])


@pytest.fixture(scope="module")
def short(sources):
    """Those of the first bucket, in one batch."""
    return [ids for ids in sources if len(ids) <= 8][:8]


@pytest.fixture(scope="module")
def translations(decoder, params, sources):
    return decoder(params, sources)


def ids_of(translations):
    return [[best.ids for best in hypotheses] for hypotheses in translations]


def test_a_translation_is_the_same_alone_and_in_any_batch_and_order(
    decoder, params, sources, translations
):
    expected = ids_of(translations)
    assert len({str(ids) for ids in expected}) > len(sources) / 2
    assert ids_of(decoder(params, sources[::-1])) == expected[::-1]
    for n in (0, 7, 20):
        assert ids_of(decoder(params, [sources[n]])) == [expected[n]]
        assert ids_of(decoder(params, [sources[n]] * 9 + sources[:5]))[8] == expected[n]


def test_one_compilation_a_bucket_and_no_more(decoder, params, sources, translations):
    assert decoder.compilations == len(decoder.shapes) == 2
    decoder(params, sources[:3])
    assert decoder.compilations == 2
    assert decoder.shapes == ((8, 16), (16, 16))


def test_sampled_outputs_follow_from_the_seed_and_the_source_alone(
    sampling_decoder, greedy_decoder, params, short
):
    first = ids_of(sampling_decoder(params, short, seed=1))
    assert ids_of(sampling_decoder(params, short[::-1], seed=1)) == first[::-1]
    assert ids_of(sampling_decoder(params, short[3:4], seed=1)) == first[3:4]
    assert ids_of(sampling_decoder(params, short, seed=2)) != first
    likeliest = make(replace(GREEDY, temperature=1.5, top_k=1), buckets=[8])(params, short)
    assert ids_of(likeliest) == ids_of(greedy_decoder(params, short)) != first


def test_log_probabilities_are_those_of_the_full_forward(
    decoder, greedy_decoder, sampling_decoder, params, short
):
    """Cached, reordered, padded search against one pass over source and result."""
    found = [
        pair
        for searched in (decoder, greedy_decoder, sampling_decoder)
        for pair in zip(short, searched(params, short), strict=True)
    ]
    pairs = [(ids, best) for ids, hypotheses in found for best in hypotheses]
    # At the limit of 16 there is no end token.
    targets = [best.ids if len(best.ids) == 16 else [*best.ids, EOS] for _, best in pairs]
    assert len({len(target) for target in targets}) > 3

    def fill(rows, length):
        return np.array([[*row, *[PAD] * (length - len(row))] for row in rows])

    source, target = fill([ids for ids, _ in pairs], 8), fill(targets, 16)
    inputs = np.pad(target, ((0, 0), (1, 0)), constant_values=START)[:, :-1]
    # No source holds PAD, no target either.
    logits = jax.jit(build(CONFIG).apply)(params, source, source != PAD, inputs)
    log_probs = np.take_along_axis(np.array(jax.nn.log_softmax(logits)), target[..., None], 2)
    expected = (log_probs[..., 0] * (target != PAD)).sum(axis=1)
    np.testing.assert_allclose([best.log_prob for _, best in pairs], expected, atol=1e-4)
    penalties = ((5 + (target != PAD).sum(axis=1)) / 6) ** 0.6
    np.testing.assert_allclose([best.score for _, best in pairs], expected / penalties, atol=1e-4)


def test_hypotheses_are_sorted_and_distinct(translations):
    for first, second in translations:
        assert first.score >= second.score and first.ids != second.ids


def test_an_empty_source_gives_an_empty_translation_without_the_model(decoder, params, sources):
    unused = make()
    assert unused(None, [[], []]) == [[Hypothesis([], 0.0, 0.0)]] * 2
    assert unused.compilations == 0
    assert ids_of(decoder(params, [[], sources[0]]))[1] == ids_of(decoder(params, sources[:1]))[0]


def test_a_source_beyond_the_context_is_refused_and_may_be_asked_for(decoder, params):
    assert decoder.fits([5] * 16) and not decoder.fits([5] * 17)
    with pytest.raises(LabError, match="source 1 has 17 tokens, .* is 16: shorten it"):
        decoder(params, [[5], [5] * 17])
    assert decoder(params, [[], []]) == [[Hypothesis([], 0.0, 0.0)]] * 2


def test_new_tokens_beyond_the_context_are_refused():
    with pytest.raises(LabError, match="max_new_tokens = 17 exceeds model.max_length = 16"):
        make(replace(BEAM, max_new_tokens=17))
    assert [s.new_tokens for s in make(replace(BEAM, max_new_tokens=5)).shapes] == [5, 5]
    assert [s.new_tokens for s in make(buckets=[2, 9]).shapes] == [14, 16]
    with pytest.raises(LabError, match="buckets .* must be lengths from 1 to .* = 16"):
        make(buckets=[8, 17])


def test_a_model_on_a_mesh_translates_alike(decoder, params, short):
    axes = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=axes)

    def put(x):
        even = x.ndim == 2 and x.shape[1] % 2 == 0
        return jax.device_put(x, NamedSharding(mesh, P(None, "tensor") if even else P()))

    def place(batch):
        return jax.device_put(batch, NamedSharding(mesh, P("data")))

    found = make(place=place, buckets=[8])(jax.tree.map(put, params), short)
    assert ids_of(found) == ids_of(decoder(params, short))


def test_a_bfloat16_model_is_searched_in_float32(greedy_decoder, params, short):
    decoder = make(GREEDY, replace(CONFIG, dtype="bfloat16"), buckets=[8])
    found = zip(decoder(params, short), greedy_decoder(params, short), strict=True)
    same = [(one.log_prob, two.log_prob) for (one,), (two,) in found if one.ids == two.ids]
    assert len(same) >= 4
    np.testing.assert_allclose(*zip(*same, strict=True), atol=0.2)


def test_scores_that_are_not_finite_are_refused(greedy_decoder, params):
    broken = jax.tree.map(lambda x: x * np.float32(np.nan), params)
    with pytest.raises(LabError, match="source 0 no finite score"):
        greedy_decoder(broken, [[5]])
