"""A random decoder, and what its continuations are by full forwards, one token at a time."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.decoding.toy import EOS
from transformer_lab.decoding import DecodeConfig
from transformer_lab.decoding.generate import Generator
from transformer_lab.models.decoder import DecoderConfig, build

V, NEW = 13, 10
CONFIG = DecoderConfig(
    layers=1,
    width=16,
    heads=2,
    head_dim=8,
    feed_forward_width=24,
    vocab_size=V,
    max_length=20,
    dropout=0.0,
    head_bias=True,
)
PROMPTS = [[2, 5, 7], [4], [9, 9, 3, 12, 2, 6, 8], [11, 2], [6, 4, 10, 3, 7]]


def draw(model):
    """Opinionated parameters, so that texts differ; the end token comes now and then."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"]
    rng = np.random.default_rng(11)
    return jax.tree.map(lambda s: np.float32(rng.normal(size=s.shape) / 2), shapes)


def end_token(params, bias):
    """The parameters with another bias of the end token."""
    old = params["head_bias"]
    return {**params, "head_bias": np.float32(np.where(np.arange(len(old)) == EOS, bias, old))}


class Model:
    """A model as a function of a whole sequence; causal, so padding on the right is not seen."""

    def __init__(self, config=CONFIG):
        self.model, self.config = build(config), config
        self.params = end_token(draw(self.model), 1.1)

        @jax.jit
        def run(params, tokens, prefix):
            logits = self.model.apply({"params": params}, tokens, prefix=prefix)
            return jax.nn.log_softmax(logits.astype(jnp.float32))

        self._run = run

    def log_probs(self, params, ids, prompt):
        """[len(ids), V]: of the token after each."""
        tokens = np.zeros((1, self.config.max_length), np.int32)
        tokens[0, : len(ids)] = ids
        prefix = np.arange(self.config.max_length)[None] < len(prompt)
        found = self._run(params, tokens, prefix if self.config.mask == "prefix" else None)
        return np.asarray(found)[0, : len(ids)]

    def greedy(self, params, prompt, new, banned=()):
        """Ids with the end token, and their log-probabilities."""
        ids, scores = list(prompt), []
        while len(scores) < new and (not scores or ids[-1] != EOS):
            last = self.log_probs(params, ids, prompt)[-1]
            token = int(np.where(np.isin(np.arange(V), banned), -np.inf, last).argmax())
            ids.append(token)
            scores.append(last[token])
        return ids[len(prompt) :], scores

    def generator(self, **settings):
        options = {
            name: settings.pop(name) for name in ("place", "rows_multiple") & settings.keys()
        }
        decode = DecodeConfig(**{"batch_size": 8, "max_new_tokens": NEW, **settings})
        return Generator(self.model, decode, eos_id=EOS, **options)
