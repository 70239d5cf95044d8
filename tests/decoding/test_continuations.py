"""Given continuations of contexts that are read once, against whole texts read at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.tiny import draw
from transformer_lab.decoding import continuations
from transformer_lab.decoding.continuations import Continuations
from transformer_lab.layers.block_config import MixerConfig
from transformer_lab.models.decoder import Decoder, DecoderConfig

SIZES = {"layers": 2, "width": 16, "heads": 2, "head_dim": 8, "feed_forward_width": 24}
KINDS = {
    "learned": {},
    "rope": {"positions": "rope", "kv_heads": 1, "norm": "rms_norm"},
}


def model_of(**changes):
    config = DecoderConfig(**SIZES, vocab_size=37, max_length=48, dropout=0.0, **changes)
    model = Decoder(config)
    return model, draw(model, jnp.zeros((1, 2), jnp.int32))["params"]


def check(model, params, groups, found):
    """Each score is that of the whole text, read at once."""
    run = jax.jit(lambda x: model.apply({"params": params}, x))
    assert set(found) == set(range(len(groups)))
    for n, (context, ends) in enumerate(groups):
        assert len(found[n]) == len(ends)
        for end, scored in zip(ends, found[n], strict=True):
            room = context[-(48 - 8) :]  # the batch's continuations have room for 8 tokens
            text = [*room, *end]
            logits = run(jnp.array([text + [0] * (48 - len(text))]))[0, len(room) - 1 :]
            logits = np.asarray(logits)[: len(end)]
            chances = scipy.special.log_softmax(logits, axis=-1)
            np.testing.assert_allclose(
                scored.log_prob, chances[np.arange(len(end)), end].sum(), rtol=1e-4
            )
            assert scored.greedy == (logits.argmax(axis=-1).tolist() == end)


@pytest.mark.parametrize("kind", KINDS)
def test_each_continuation_has_the_log_probability_of_the_whole_text(kind):
    model, params = model_of(**KINDS[kind])
    rng = np.random.default_rng(0)
    ids = lambda n: rng.integers(0, 37, n).tolist()  # noqa: E731
    sizes = {5: (3, 4, 1), 1: (2, 2), 9: (7,), 4: (3, 8, 5), 30: (2, 6), 60: (3, 3)}
    groups = [(ids(n), [ids(k) for k in ends]) for n, ends in sizes.items()]
    start = jnp.array([groups[0][0]])
    likeliest = jax.jit(model.apply)({"params": params}, start)[0, 4].argmax()
    groups[0][1].append([int(likeliest)])  # and so its greedy flag is known
    found = dict(Continuations(model, rows=8)(params, groups))
    check(model, params, groups, found)
    assert found[0][-1].greedy


@pytest.mark.parametrize("kind", [*KINDS, "rwkv"])
def test_what_most_contexts_begin_with_is_read_once(kind, monkeypatch):
    monkeypatch.setattr(continuations, "LEAST", 16)
    model, params = model_of(**KINDS.get(kind, {"mixer": MixerConfig(kind="rwkv")}))
    rng = np.random.default_rng(1)
    ids = lambda n: rng.integers(0, 37, n).tolist()  # noqa: E731
    head = ids(18)
    afters = [ids(n) for n in (1, 9, 5, 16, 2)]
    contexts = [*([*head, *after] for after in afters), head, [*head, *ids(20)], ids(3)]
    groups = [(context, [ids(3), ids(4)]) for context in contexts]
    scorer, shared = Continuations(model, rows=4), []
    score, scorer._score = scorer._score, lambda *x: shared.append(len(x) > 2) or score(*x)
    check(model, params, groups, dict(scorer(params, groups)))
    # Two contexts form a batch; 20 tokens, padded to 32, have no room; a state is not shared.
    assert shared == ([False] * 4 if kind == "rwkv" else [True] * 3 + [False] * 2)
