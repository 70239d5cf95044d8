"""A random recurrent model, and what search over it should find, in plain Python."""

import itertools
import math
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab.decoding import search

PAD, EOS = 0, 1


class Toy:
    """As a search's step, and as a function of a whole sequence; rows differ by their memory."""

    def __init__(self, seed: int, rows: int, vocab: int, eos_bias: float = 0.0, width: int = 5):
        draw = np.random.default_rng(seed).normal
        self.rows, self.vocab = rows, vocab
        self.mix = draw(size=(width, width))
        self.embedding = draw(size=(vocab + 1, width))  # the last one starts
        self.memory = draw(size=(rows, width))
        self.head = 1.5 * draw(size=(width, vocab))
        self.bias = eos_bias * (np.arange(vocab) == EOS)
        self.steps: set[int] = set()  # that ran, if watched

    def cache(self) -> dict:
        state = jnp.zeros(self.memory.shape)
        memory = jnp.asarray(self.memory, jnp.float32)
        return {"index": jnp.zeros((), jnp.int32), "layers": {"h": state}, "memory": memory}

    def step(self, tokens, cache):
        mix, embedding = jnp.asarray(self.mix), jnp.asarray(self.embedding)
        h = cache["layers"]["h"] @ mix + embedding[tokens[:, 0]] + cache["memory"]
        h = jnp.tanh(h).astype(jnp.float32)
        logits = (h @ jnp.asarray(self.head) + self.bias)[:, None].astype(jnp.float32)
        return logits, {**cache, "index": cache["index"] + 1, "layers": {"h": h}}

    def watched_step(self, tokens, cache):
        jax.debug.callback(lambda index: self.steps.add(int(index)), cache["index"])
        return self.step(tokens, cache)

    def run(self, kind, config, length, step=None, real=None):
        start = jnp.full(self.rows, self.vocab)
        return run(kind, step or self.step, self.cache(), start, config, length, real)

    def log_probs(self, row: int, ids: tuple[int, ...]) -> np.ndarray:
        """Of each token after the given ones."""
        h = np.zeros(self.memory.shape[1])
        for token in (self.vocab, *ids):
            h = np.tanh(h @ self.mix + self.embedding[token] + self.memory[row])
        logits = h @ self.head + self.bias
        return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()

    def log_prob(self, row: int, ids: tuple[int, ...]) -> float:
        """Of a whole sequence."""
        return sum(self.log_probs(row, ids[:i])[token] for i, token in enumerate(ids))


def run(kind, step, cache, start, config, length, real=None):
    """The compiled search's result in numpy."""
    more = {"eos_id": EOS, "pad_id": PAD, "max_new_tokens": length, "real": real, "kind": kind}
    return jax.device_get(jax.jit(lambda cache: search(step, cache, start, config, **more))(cache))


def penalty(config, length: int) -> float:
    base = (5 + length) / 6 if config.length_penalty == "gnmt" else length
    return base**config.alpha


def brute_force(toy: Toy, row: int, config, longest: int) -> list[tuple[float, tuple[int, ...]]]:
    """Score and tokens of every sequence that ends in EOS or is `longest` long, best first."""
    found = []
    others = [token for token in range(toy.vocab) if token != EOS]
    for length in range(1, longest + 1):
        last = [EOS] if length < longest else range(toy.vocab)
        for ids in itertools.product(*[others] * (length - 1), last):
            found.append((toy.log_prob(row, ids) / penalty(config, length), ids))
    return sorted(found, reverse=True)


def beam(toy: Toy, row: int, config, longest: int, stop: str) -> tuple[list, int]:
    """Finished (score, tokens) of one row, best first, and the steps it took; stop "never" runs on
    to the end."""
    width, live, finished = config.beam_size, [(0.0, ())], []
    first = itemgetter(0)
    for length in range(1, longest + 1):
        drawn = [
            (score + more, (*ids, token))
            for score, ids in live
            for token, more in enumerate(toy.log_probs(row, ids))
        ]
        drawn = sorted(drawn, key=first, reverse=True)[: 2 * width]
        is_end = lambda ids: ids[-1] == EOS or len(ids) == longest  # noqa: E731
        live = [(score, ids) for score, ids in drawn if not is_end(ids)][:width]
        ended = [(score, ids) for score, ids in drawn[:width] if is_end(ids)]
        finished += [(score / penalty(config, length), ids) for score, ids in ended]
        finished = sorted(finished, key=first, reverse=True)[:width]
        full = len(finished) == width
        worst = finished[-1][0] if full else -math.inf
        if not live or (stop == "first" and full):
            break
        if stop == "heuristic" and live[0][0] / penalty(config, length) <= worst:
            break
    return finished, length
