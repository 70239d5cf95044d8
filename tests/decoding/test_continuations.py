"""Given continuations of contexts that are read once, against whole texts read at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.tiny import draw
from transformer_lab.decoding.continuations import Continuations
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


@pytest.mark.parametrize("kind", KINDS)
def test_each_continuation_has_the_log_probability_of_the_whole_text(kind):
    model, params = model_of(**KINDS[kind])
    rng = np.random.default_rng(0)
    ids = lambda n: rng.integers(0, 37, n).tolist()  # noqa: E731
    sizes = {5: (3, 4, 1), 1: (2, 2), 9: (7,), 4: (3, 8, 5), 30: (2, 6), 60: (3, 3)}
    groups = [(ids(n), [ids(k) for k in ends]) for n, ends in sizes.items()]
    run = jax.jit(lambda x: model.apply({"params": params}, x))
    likeliest = run(jnp.array([[*groups[0][0], *[0] * 43]]))[0, 4].argmax()
    groups[0][1].append([int(likeliest)])  # and so its greedy flag is known
    found = dict(Continuations(model, rows=8)(params, groups))
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
    assert found[0][-1].greedy
