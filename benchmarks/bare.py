"""The yardstick: an encoder-decoder and its training step as one writes them without a library.

Plain Linen and optax, of the same sizes, dropout and loss as the model that it is compared with.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.common import BOS, DROPOUT, SMOOTHING, Size


class Attention(nn.Module):
    size: Size

    @nn.compact
    def __call__(self, x, memory, mask):
        size, dtype = self.size, jnp.dtype(self.size.dtype)
        split = lambda h: h.reshape(*h.shape[:2], size.heads, -1)  # noqa: E731
        query = split(nn.Dense(size.width, dtype=dtype)(x))
        key = split(nn.Dense(size.width, dtype=dtype)(memory))
        value = split(nn.Dense(size.width, dtype=dtype)(memory))
        scores = jnp.einsum("bthd,bshd->bhts", query, key) / math.sqrt(query.shape[-1])
        scores = jnp.where(mask, scores.astype(jnp.float32), -1e9)
        weights = jax.nn.softmax(scores).astype(dtype)
        out = jnp.einsum("bhts,bshd->bthd", weights, value).reshape(x.shape)
        return nn.Dense(size.width, dtype=dtype)(out)


class Layer(nn.Module):
    size: Size
    cross: bool

    @nn.compact
    def __call__(self, x, mask, memory=None, memory_mask=None):
        size, dtype = self.size, jnp.dtype(self.size.dtype)
        drop = lambda h: nn.Dropout(DROPOUT, deterministic=False)(h)  # noqa: E731
        norm = lambda h: nn.LayerNorm(dtype=dtype)(h)  # noqa: E731
        h = norm(x)
        x = x + drop(Attention(size)(h, h, mask))
        if self.cross:
            x = x + drop(Attention(size)(norm(x), memory, memory_mask))
        h = nn.relu(nn.Dense(size.feed_forward, dtype=dtype)(norm(x)))
        return x + drop(nn.Dense(size.width, dtype=dtype)(h))


class Transformer(nn.Module):
    size: Size

    @nn.compact
    def __call__(self, source, source_mask, target):
        size, dtype = self.size, jnp.dtype(self.size.dtype)
        embed = nn.Embed(
            size.vocabulary,
            size.width,
            dtype=dtype,
            embedding_init=nn.initializers.normal(size.width**-0.5),
        )

        def embedded(ids):
            x = embed(ids) * math.sqrt(size.width)
            x = x + jnp.asarray(positions(ids.shape[1], size.width), dtype)
            return nn.Dropout(DROPOUT, deterministic=False)(x)

        memory_mask = source_mask[:, None, None, :]
        memory = embedded(source)
        for _ in range(size.layers):
            memory = Layer(size, cross=False)(memory, memory_mask)
        memory = nn.LayerNorm(dtype=dtype)(memory)
        x, causal = embedded(target), jnp.tril(jnp.ones((target.shape[1],) * 2, bool))
        for _ in range(size.layers):
            x = Layer(size, cross=True)(x, causal, memory, memory_mask)
        return embed.attend(nn.LayerNorm(dtype=dtype)(x)).astype(jnp.float32)


def positions(length: int, width: int) -> np.ndarray:
    """Sinusoids (Vaswani 2017, section 3.5)."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width)


def make_step(size: Size, batch, rate: float):
    """The compiled step(state, batch) -> (state, loss), and its first state."""
    model, optimizer = Transformer(size), optax.adam(rate, b1=0.9, b2=0.98, eps=1e-9)

    def shifted(target):
        return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)

    def loss_of(params, batch, key):
        logits = model.apply(
            {"params": params},
            batch["source"],
            batch["source_mask"],
            shifted(batch["target"]),
            rngs={"dropout": key},
        )
        labels = optax.smooth_labels(jax.nn.one_hot(batch["target"], size.vocabulary), SMOOTHING)
        losses = optax.softmax_cross_entropy(logits, labels) * batch["target_mask"]
        return losses.sum() / batch["target_mask"].sum()

    def step(state, batch):
        params, opt_state, key = state
        key, dropout_key = jax.random.split(key)
        loss, gradient = jax.value_and_grad(loss_of)(params, batch, dropout_key)
        updates, opt_state = optimizer.update(gradient, opt_state)
        return (optax.apply_updates(params, updates), opt_state, key), loss

    def init(key):
        rngs = {"params": key, "dropout": key}
        inputs = batch["source"][:1], batch["source_mask"][:1], batch["target"][:1]
        params = model.init(rngs, *inputs)["params"]
        return params, optimizer.init(params), key

    return jax.jit(step, donate_argnums=0), jax.jit(init)(jax.random.key(0))
