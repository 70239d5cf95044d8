"""Continuing prompts against full forwards, one token at a time."""

import itertools
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.toy import EOS
from tests.decoding.toy_decoder import CONFIG, NEW, PROMPTS, Model, V, end_token
from transformer_lab.decoding import Beams, DecodeConfig, generate, search
from transformer_lab.errors import LabError
from transformer_lab.training.config import MeshConfig
from transformer_lab.training.mesh import make_mesh, placer


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.fixture(scope="module")
def greedy(model):
    return model.generator(banned_tokens=(0,))


@pytest.fixture(scope="module")
def sampling(model):
    return model.generator(temperature=1.0)


@pytest.fixture(scope="module")
def restricted(model):
    return model.generator(temperature=0.7, top_k=4, top_p=0.9)


def using(generator, **changes):
    """The same compiled generator with other numbers."""
    generator.config = replace(generator.config, **changes)
    return generator


def ids_of(found):
    return [[one.ids for one in samples] for samples in found]


def check_greedy(model, params, prompts, found, new, banned=()):
    """Token for token; returns which ones ended."""
    for prompt, (one,) in zip(prompts, found, strict=True):
        ids, log_probs = model.greedy(params, prompt, new, banned)
        ended = ids[-1] == EOS
        assert (one.ids, one.ended) == (ids[:-1] if ended else ids, ended)
        np.testing.assert_allclose(one.log_probs, log_probs, atol=1e-4)
    return [one.ended for (one,) in found]


def test_greedy_is_the_argmax_of_full_forwards_with_their_log_probabilities(model, greedy):
    """Also where a row ends before the others: nothing after its end token counts."""
    found = greedy(model.params, PROMPTS)
    ended = check_greedy(model, model.params, PROMPTS, found, NEW, (0,))
    assert any(ended) and not all(ended)
    assert len({len(one.ids) for (one,) in found}) > 2


@pytest.mark.parametrize(
    "settings",
    [{"positions": "rope", "window": 3, "kv_heads": 1}, {"mask": "prefix", "positions": "t5"}],
    ids=["window", "prefix"],
)
def test_other_kinds_of_models_continue_as_their_full_forwards_say(settings):
    model = Model(replace(CONFIG, **settings))
    params = end_token(model.params, -99.0)
    found = model.generator()(params, PROMPTS)
    assert check_greedy(model, params, PROMPTS, found, NEW) == [False] * 5


def test_a_prompt_alone_and_in_a_batch_gives_the_same_text(model, sampling):
    together = ids_of(sampling(model.params, PROMPTS, seed=3))
    assert ids_of(sampling(model.params, PROMPTS[::-1], seed=3)) == together[::-1]
    for n in (0, 2, 4):
        assert ids_of(sampling(model.params, [PROMPTS[n]], seed=3)) == [together[n]]


def test_samples_of_one_prompt_differ_and_follow_from_the_seed(model, sampling):
    first = ids_of(sampling(model.params, PROMPTS[:2], samples=4, seed=1))
    assert len({str(ids) for ids in first[0]}) == 4
    assert ids_of(sampling(model.params, PROMPTS[:2], samples=4, seed=1)) == first
    assert ids_of(sampling(model.params, PROMPTS[:2], samples=4, seed=2)) != first
    # More samples only add to those that there were.
    assert ids_of(sampling(model.params, PROMPTS[:1], samples=8, seed=1))[0][:4] == first[0]


def test_log_probabilities_are_those_of_the_model_whatever_the_temperature(model, restricted):
    found = using(restricted, temperature=3.0, top_k=4, top_p=1.0)(model.params, PROMPTS)
    for prompt, (one,) in zip(PROMPTS, found, strict=True):
        made = [*one.ids, EOS] if one.ended else one.ids
        want = model.log_probs(model.params, [*prompt, *made], prompt)[len(prompt) - 1 : -1]
        got = want[np.arange(len(made)), made]
        np.testing.assert_allclose(one.log_probs, got, atol=1e-4)
        assert (np.sort(want, axis=1)[:, -4] <= got).all()  # only of the four likeliest


def test_temperature_to_0_and_top_k_1_and_top_p_0_are_greedy(model, greedy, restricted):
    want = ids_of(using(restricted, temperature=1.0, top_k=1, top_p=1.0)(model.params, PROMPTS))
    assert want[0] == [model.greedy(model.params, PROMPTS[0], NEW)[0][: len(want[0][0])]]
    for changes in (
        {"top_k": 0, "top_p": 0.0},
        {"temperature": 1e-4, "top_k": 5, "top_p": 1.0},
        {"temperature": 1e-44, "top_k": 5, "top_p": 0.9},
    ):
        changes = {"temperature": 1.0, **changes}
        assert ids_of(using(restricted, **changes)(model.params, PROMPTS, seed=4)) == want


def test_top_k_above_the_vocabulary_equals_none(model, sampling, restricted):
    want = ids_of(sampling(model.params, PROMPTS, seed=9))
    for k in (V, V + 1, 10**10):
        generator = using(restricted, temperature=1.0, top_k=k, top_p=1.0)
        assert ids_of(generator(model.params, PROMPTS, seed=9)) == want


def test_a_new_seed_temperature_or_restriction_compiles_nothing(model):
    generator = model.generator(temperature=0.7, top_k=4, top_p=0.9)
    generator(model.params, PROMPTS)
    assert generator.compilations == 2  # the prompts, and the steps after them
    generator(model.params, PROMPTS[::-1], seed=5, stops=lambda prompt, ids: 7 in ids)
    for changes in ({"temperature": 0.2}, {"top_k": 7}, {"top_p": 0.5}, {"max_new_tokens": 3}):
        using(generator, **changes)(model.params, [prompt[:1] for prompt in PROMPTS])
    list(generator.stream(model.params, PROMPTS, chunk=1))
    assert generator.compilations == 2


def test_a_text_may_fill_the_context_and_never_exceeds_it(model, greedy):
    params, longest = end_token(model.params, -99.0), [PROMPTS[2] * 3][0][:19]
    for prompt in (PROMPTS[4], longest):
        (found,) = using(greedy, max_new_tokens=20 - len(prompt))(params, [prompt])
        check_greedy(model, params, [prompt], [found], 20 - len(prompt), (0,))
        assert len(prompt) + len(found[0].ids) == 20
        assert ids_of(using(greedy, max_new_tokens=0)(params, [prompt])) == [[found[0].ids]]
        too_many = using(greedy, max_new_tokens=21 - len(prompt))
        with pytest.raises(LabError, match="do not fit model.max_length = 20") as info:
            too_many(params, [PROMPTS[1], prompt])
        assert "\n" not in str(info.value)
    # A default gives way instead, as far as there is room.
    greedy.shrinks = True
    shrunk = ids_of(using(greedy, max_new_tokens=19)(params, [longest, PROMPTS[1]]))
    assert [len(ids) for (ids,) in shrunk] == [20 - len(longest), 19]
    greedy.shrinks = False
    for prompt in ([], [5] * 20):
        with pytest.raises(LabError, match="a prompt of"):
            using(greedy, max_new_tokens=0).new_tokens(prompt)
    using(greedy, max_new_tokens=NEW)


def test_the_end_token_first_gives_an_empty_text(model, greedy):
    found = greedy(end_token(model.params, 99.0), PROMPTS)
    assert all(one.ids == [] and one.ended for (one,) in found)
    np.testing.assert_allclose([one.log_probs for (one,) in found], 0.0, atol=1e-6)


def test_each_of_several_end_tokens_ends_a_text_and_is_not_part_of_it(model):
    """And counts with its own log-probability, in a beam search too."""
    params, new = end_token(model.params, -9.0), 6
    whole = {n: model.greedy(params, p, new) for n, p in enumerate(PROMPTS)}
    other = whole[0][0][2]  # made by the first prompt, and not the end token
    generator = model.generator(end_tokens=(EOS, other), max_new_tokens=new)
    for n, (one,) in enumerate(generator(params, PROMPTS)):
        ids, log_probs = whole[n]
        cut = ids.index(other) if other in ids else new
        assert (one.ids, one.ended) == (ids[:cut], other in ids)
        np.testing.assert_allclose(one.log_probs, log_probs[: cut + 1], atol=1e-5)
    beams = model.generator(end_tokens=(other,), max_new_tokens=new, beam_size=2, alpha=0.0)
    (found,) = beams(params, PROMPTS[:1])[0]
    prompt, ids = PROMPTS[0], found.ids
    assert other not in ids and found.ended
    after = model.log_probs(params, [*prompt, *ids], prompt)[len(prompt) - 1 :]
    text = sum(after[i, token] for i, token in enumerate(ids))
    assert found.log_probs == pytest.approx([text + after[-1, other]], abs=1e-4)


def test_what_is_streamed_is_what_a_call_returns(model, greedy):
    whole = [one for (one,) in greedy(model.params, PROMPTS)]
    for chunk in (1, 4):
        ids, scores = [[] for _ in PROMPTS], [[] for _ in PROMPTS]
        for row, some, their in greedy.stream(model.params, PROMPTS, chunk=chunk):
            assert 1 <= len(some) <= chunk and len(some) == len(their)
            ids[row] += some
            scores[row] += their
        for n, one in enumerate(whole):
            assert ids[n] == ([*one.ids, EOS] if one.ended else one.ids)
            np.testing.assert_allclose(scores[n], one.log_probs, atol=1e-6)


def test_a_stream_asked_for_more_than_a_call_makes_gives_all_in_smaller_pieces(
    model, greedy, monkeypatch
):
    whole = [one.ids for (one,) in greedy(model.params, PROMPTS)]
    monkeypatch.setattr(generate, "CHUNK", 2)
    ids = [[] for _ in PROMPTS]
    pieces = model.generator(banned_tokens=(0,)).stream(model.params, PROMPTS, chunk=5)
    for row, some, _ in itertools.islice(pieces, 100):
        assert len(some) <= 2
        ids[row] += [one for one in some if one != EOS]
    assert ids == whole and max(map(len, whole)) > 2


def test_a_row_that_stops_is_continued_no_further(model, greedy):
    params = end_token(model.params, -99.0)
    whole = [one.ids for (one,) in greedy(params, PROMPTS)]
    token = whole[0][3]
    rows = [[] for _ in PROMPTS]
    stops = lambda prompt, ids: token in ids  # noqa: E731
    for row, some, _ in greedy.stream(params, PROMPTS, stops=stops, chunk=1):
        rows[row] += some
    for ids, all_of_them in zip(rows, whole, strict=True):
        end = all_of_them.index(token) + 1 if token in all_of_them else NEW
        assert ids == all_of_them[:end]
    (one,) = greedy(params, PROMPTS[:1], stops=stops)[0]
    assert one.ended


def test_a_mesh_of_eight_devices_continues_alike(model, sampling):
    place = placer(make_mesh(MeshConfig()))
    mesh = model.generator(temperature=1.0, place=place, rows_multiple=8)
    want = ids_of(sampling(model.params, PROMPTS, seed=3))
    assert ids_of(mesh(model.params, PROMPTS, seed=3)) == want


def test_a_beam_as_wide_as_all_sequences_equals_brute_force_after_a_prompt():
    model = Model(replace(CONFIG, vocab_size=3, positions="rope"))
    config = {"beam_size": 31, "n_best": 4, "max_new_tokens": 4, "alpha": 0.0}
    prompts = [[2, 0, 2], [2]]
    endings = [
        ids
        for length in range(1, 5)
        for ids in itertools.product([0, 2], repeat=length - 1)
        for ids in ([*ids, EOS], *([[*ids, 0], [*ids, 2]] if length == 4 else []))
    ]
    assert len(endings) == 31
    for prompt, found in zip(
        prompts, model.generator(**config)(model.params, prompts), strict=True
    ):
        scored = []
        for ids in endings:
            want = model.log_probs(model.params, [*prompt, *ids], prompt)[len(prompt) - 1 : -1]
            scored.append((float(want[np.arange(len(ids)), ids].sum()), ids))
        best = sorted(scored, reverse=True)[:4]
        assert [one.ids for one in found] == [
            ids[:-1] if ids[-1] == EOS else ids for _, ids in best
        ]
        np.testing.assert_allclose([one.log_probs[0] for one in found], [s for s, _ in best], 1e-4)


def test_a_beam_of_1_equals_greedy(model, greedy):
    prompts, run = jnp.array([PROMPTS[0], [4, 8, 11]]), model.model.apply

    @jax.jit
    def find(params):
        _, state = run(params, prompts[:, :-1], None, 12, method="prefill")
        step = partial(run, params, method="step")
        ids, config = {"eos_id": EOS, "pad_id": EOS}, DecodeConfig(banned_tokens=(0,))
        more = {"max_new_tokens": NEW, "kind": Beams}
        return search(step, state, prompts[:, -1], config, **ids, **more)

    found = find({"params": model.params})
    for row, (one,) in enumerate(greedy(model.params, prompts.tolist())):
        want = [*one.ids, EOS] if one.ended else one.ids
        assert found.tokens[row, 0, : found.lengths[row, 0]].tolist() == want
        np.testing.assert_allclose(found.log_probs[row, 0], sum(one.log_probs), atol=1e-4)


def test_a_beam_over_a_prefix_model_is_refused():
    model = Model(replace(CONFIG, mask="prefix"))
    with pytest.raises(LabError, match="does not go with model.mask"):
        model.generator(beam_size=2)(model.params, PROMPTS)
