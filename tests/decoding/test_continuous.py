"""Requests that come and go, each of which gets what the generator gives it alone."""

from dataclasses import replace

import numpy as np
import pytest

from tests.decoding.toy import EOS
from tests.decoding.toy_decoder import CONFIG, Model, V
from transformer_lab.decoding import DecodeConfig
from transformer_lab.decoding.continuous import Busy, Engine, Request
from transformer_lab.decoding.prefixes import BLOCK
from transformer_lab.errors import LabError
from transformer_lab.layers.block_config import MixerConfig

LONG, NEW = 190, 12
RULES = {"no_repeat_ngram": 3, "min_new_tokens": 2, "banned_tokens": (0,)}  # that look back
MIXER = MixerConfig(inner_width=32, state=4, step_rank=2, state_heads=4)
HYBRID = {"layer_kinds": ("mamba/none", "full"), "layers": 2, "positions": "rope", "mixer": MIXER}
KINDS = {
    "learned": {},
    "window": {"positions": "rope", "window": 5, "kv_heads": 1},
    "alibi": {"positions": "alibi"},
    "prefix": {"mask": "prefix", "positions": "t5"},
    "rwkv": {"layer_kinds": ("rwkv/shifted",), "mixer": MIXER},
    "mamba2": {"layer_kinds": ("mamba2",), "mixer": MIXER},
}


def some_prompts():
    draw = np.random.default_rng(0).integers
    prompts = [draw(2, V, n).tolist() for n in (1, 3, 70, 2 * BLOCK + 6, 20, 65, 170)]
    return [*prompts, prompts[3][: 2 * BLOCK + 2] + [5, 6, 7]]  # begins as the fourth does


PROMPTS = some_prompts()


def engine_of(model, slots=3, **settings):
    engine = Engine(
        model.model, model.params, DecodeConfig(**settings), eos_id=EOS, slots=slots, waiting=20
    )
    engine.warm_up()
    return engine


@pytest.fixture(scope="module")
def model():
    return Model(replace(CONFIG, max_length=LONG, **HYBRID))


@pytest.fixture(scope="module")
def engine(model):
    return engine_of(model, **RULES)


def requests(prompts=PROMPTS, **settings):
    return [Request(prompt, NEW, **settings) for prompt in prompts]


def check(found, generated):
    for got, (want,) in zip(found, generated, strict=True):
        assert (got.ids, got.ended) == (want.ids, want.ended)
        np.testing.assert_allclose(got.log_probs, want.log_probs, atol=1e-4)


def test_each_gets_the_likeliest_text_alone_and_in_company_and_nothing_is_compiled(model, engine):
    compiled = engine.compilations
    want = model.generator(max_new_tokens=NEW, **RULES)(model.params, PROMPTS)
    check(engine(requests()), want)
    assert engine.prefixes.hits >= 2 * BLOCK
    for n in (0, 3, 4):  # the fourth's beginning is known by now
        check(engine(requests([PROMPTS[n]])), [want[n]])
    assert {one.ended for (one,) in want} == {True, False}
    assert engine.compilations == compiled


def test_drawn_texts_follow_from_their_own_seed_and_settings_whoever_is_beside(model, engine):
    compiled = engine.compilations
    restricted = {"temperature": 0.8, "top_k": 5, "top_p": 0.9}
    first = model.generator(max_new_tokens=NEW, **RULES, **restricted)(
        model.params, PROMPTS, seed=4
    )
    plain = model.generator(max_new_tokens=NEW, **RULES, temperature=1.5)
    second = plain(model.params, PROMPTS[:3], samples=2, seed=2**32 - 1)
    some = requests(seed=4, **restricted)
    for number in (0, 1):
        more = {"temperature": 1.5, "seed": 2**32 - 1, "number": number}
        some += requests(PROMPTS[:3], **more)
    want = [*first, *[[two[0]] for two in second], *[[two[1]] for two in second]]
    order = np.random.default_rng(1).permutation(len(some))
    check(engine([some[i] for i in order]), [want[i] for i in order])
    assert engine.compilations == compiled


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_of_models_too(kind):
    """With so long a context that the room of the slots changes too."""
    model = Model(replace(CONFIG, max_length=220, **KINDS[kind]))
    engine = engine_of(model)
    compiled = engine.compilations
    prompts = [*PROMPTS, [*PROMPTS[-1], *PROMPTS[4]]]
    check(engine(requests(prompts)), model.generator(max_new_tokens=NEW)(model.params, prompts))
    how = {"temperature": 0.9, "top_k": 7}
    want = model.generator(max_new_tokens=NEW, **how)(model.params, PROMPTS, seed=3)
    check(engine(requests(seed=3, **how)), want)
    assert engine.compilations == compiled


def test_clients_take_turns_and_those_who_gave_up_are_passed_over(engine):
    order = []

    def told(name):
        return lambda ids, log_probs, over: order.append(name) if name not in order else None

    ours = {}
    for name, client in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("a4", "a")):
        ours[name] = Request(PROMPTS[4], 5, client=client, tell=told(name))
    blocking = [Request(PROMPTS[1], LONG - 3, temperature=1.0, seed=n) for n in range(2)]
    for request in (*blocking, *ours.values()):
        engine.submit(request)
    engine.cancel(ours["a3"])
    while engine.step():
        pass
    assert order == ["a1", "b1", "a2", "a4"]
    assert engine.counts == (0, 0)


def test_a_request_that_is_given_up_makes_room_and_disturbs_nobody(model, engine):
    (want,) = model.generator(max_new_tokens=NEW, **RULES)(model.params, [PROMPTS[2]])
    made, gone = [], []
    longest = LONG - len(PROMPTS[1])
    given_up = [
        Request(PROMPTS[1], longest, temperature=1.0, seed=n, tell=lambda *part: gone.append(part))
        for n in range(3)
    ]
    stays = Request(PROMPTS[2], NEW, tell=lambda ids, *_: made.extend(ids))
    for request in (*given_up, stays):
        engine.submit(request)
    engine.step()
    for request in given_up:
        engine.cancel(request)
    count = len(gone)
    while engine.step():
        pass
    assert (made[:-1] if made[-1] == EOS else made) == want[0].ids
    assert len(gone) == count and engine.counts == (0, 0)


def test_what_cannot_be_continued_is_refused_and_a_full_queue_says_so(engine):
    for prompt, new in ([], 3), ([2] * LONG, 1), ([2] * 10, LONG - 9), ([2], 0):
        with pytest.raises(LabError, match="exceed|do not fit"):
            engine.submit(Request(prompt, new))
    told = []
    for _ in range(20):
        engine.submit(Request([2, 3], 1, tell=lambda *part: told.append(part)))
    with pytest.raises(Busy, match="20 requests are waiting"):
        engine.submit(Request([2, 3], 1))
    engine.fail()
    assert told == [([], [], True)] * 20 and engine.counts == (0, 0)


def test_old_blocks_are_forgotten_the_first_of_a_prompt_last(model, engine):
    prefixes, most = engine.prefixes, engine.prefixes.most
    prefixes.blocks.clear()
    prefixes.most = 2
    try:
        engine(requests([PROMPTS[3]]))
        assert len(prefixes.find(PROMPTS[3])) == 2
        engine(requests([PROMPTS[2]]))
        assert [len(prefixes.find(PROMPTS[n])) for n in (2, 3)] == [1, 1]
    finally:
        prefixes.most = most
