"""One linear recurrence over matrix states, which linear attention and state spaces share.

Letters: B batch, T time, H heads, K entries of a key, P entries of a value. A head's state is a
matrix S [K, P] that decays, takes in one product a step, and is read by the query:

    S_t = diag(exp(log_decay_t)) S_{t-1} + key_t value_t^T        out_t = query_t^T S_t

Linear attention has no decay (Katharopoulos 2020, eq. 18-20), RetNet (Sun 2023, eq. 6) and Mamba-2
(Dao 2024, section 5) one number a head, gated linear attention (Yang 2023, eq. 3) one an entry of
the key, S4D and Mamba (Gu 2023, eq. 2) heads of one value each, RWKV-4 (Peng 2023, eq. 16) heads
of one key each. The same numbers are computed in three ways:

    steps        `lax.scan` over time: the least work, one step after the other; the way back
                 computes the states of a chunk again from the one before it
    associative  `lax.associative_scan`: log T passes over all states, which all stand in memory
    chunks       matrix products inside of a chunk, a scan between chunks (Dao 2024, listing 1)
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from transformer_lab.errors import known

Matrix = Num[Array, "b h k p"]
WAYS = ("steps", "associative", "chunks")


def recurrence(
    query: Num[Array, "b t #h k"],
    key: Num[Array, "b t #h k"],
    value: Num[Array, "b t h p"],
    log_decay: Num[Array, "#b t #h #k"],
    initial: Matrix | None = None,
    fresh: Bool[Array, "b t"] | None = None,
    poles: Num[Array, "h k"] | None = None,
    *,
    way: str = "chunks",
    chunk: int = 64,
) -> tuple[Num[Array, "b t h p"], Matrix]:
    """The outputs of all steps, and the state after the last, computed as `way` says.

    Queries and keys that all heads have in common, as in Mamba, have one head. `log_decay` is at
    most 0, or complex with a real part of at most 0. With `poles`, the logarithm of a decay is the
    product of `log_decay`, a step size for each head, and the entry's pole (Gu 2023, eq. 4): so the
    way "steps" never holds the decays of all times. Where `fresh` is True the step begins from a
    state of zeros, as the first token of a packed document does. A step that is padding has a key
    of zeros and a log decay of 0, and leaves the state as it is. A chunk whose decays differ by the
    entry of the key (K > 1 in `log_decay`) holds [chunk, chunk, K] numbers a head: 16 is a good
    size there. Raises: LabError if `way` is unknown.

    One head with K = P = 1, query = key = 1, values 1, 1, 1 and decay 1/2 gives 1, 1.5, 1.75.
    """
    known("way of a recurrence: ", way, WAYS)
    b, t, h, k = *value.shape[:3], key.shape[-1]
    if initial is None:
        dtype = jnp.result_type(key, value, log_decay, jnp.float32)
        initial = jnp.zeros((b, h, k, value.shape[-1]), dtype)
    if fresh is None:
        fresh = jnp.zeros((b, t), bool)
    size = t if way == "associative" else min(chunk, t)
    pad = -t % size
    log_decay = jnp.broadcast_to(log_decay, (b, t, h, log_decay.shape[-1]))
    if poles is None or way != "steps":
        log_decay, poles = log_decay if poles is None else log_decay * poles, jnp.ones((1, 1))

    def parts(x):  # [B, T, ...] -> [chunks, B, chunk, ...]
        x = jnp.pad(x, ((0, 0), (0, pad), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(b, -1, size, *x.shape[2:]), 1, 0)

    xs = tuple(map(parts, (query, key, value, log_decay, fresh)))
    if way == "associative":
        last, out = _whole(initial, jax.tree.map(lambda x: x[0], xs))
        out = out[None]
    else:  # the backward pass keeps one state a chunk and computes the others again
        part = _chunk if way == "chunks" else partial(_steps, poles)
        last, out = jax.lax.scan(jax.checkpoint(part, prevent_cse=False), initial, xs)
    out = jnp.moveaxis(out, 0, 1).reshape(b, t + pad, h, -1)
    return out[:, :t], last


def step(
    state: Matrix,
    query: Num[Array, "b #h k"],
    key: Num[Array, "b #h k"],
    value: Num[Array, "b h p"],
    log_decay: Num[Array, "#b #h #k"],
) -> tuple[Matrix, Num[Array, "b h p"]]:
    """One step, as in decoding: the next state [B, H, K, P], and the output [B, H, P]."""
    if state.shape[-1] == 1:
        state, out = _one_value(state[..., 0], query, key, value[..., 0], log_decay)
        return state[..., None], out[..., None]
    state = jnp.exp(log_decay)[..., None] * state + key[..., None] * value[..., None, :]
    return state, jnp.einsum("bhk,bhkp->bhp", _for_all(query, state.shape[1]), state)


def _one_value(state, query, key, value, log_decay):
    """A step for heads whose values have one entry (P = 1), with states [B, H, K]. Without the last
    dimension, and without a product for each head, a CPU takes a third of the time."""
    state = jnp.exp(log_decay) * state + key * value[..., None]
    return state, (query * state).sum(axis=-1)


def _steps(poles, state, xs):
    """One chunk of time computed step by step: the last state, and the outputs."""
    query, key, value, *rest = (jnp.moveaxis(x, 1, 0) for x in xs)
    single = state.shape[-1] == 1
    if single:
        state, value = state[..., 0], value[..., 0]

    def one(state, x):
        *inputs, log_decay, fresh = x
        state = jnp.where(fresh.reshape(-1, *(1,) * (state.ndim - 1)), 0.0, state)
        return (_one_value if single else step)(state, *inputs, log_decay * poles)

    state, out = jax.lax.scan(one, state, (query, key, value, *rest))
    out = jnp.moveaxis(out, 0, 1)
    return (state[..., None], out[..., None]) if single else (state, out)


def _whole(initial, xs):
    query, key, value, log_decay, fresh = xs
    decay = jnp.where(fresh[:, :, None, None], 0.0, jnp.exp(log_decay))[..., None]
    new = key[..., None] * value[..., None, :]
    new = new.at[:, 0].add(decay[:, 0] * initial)

    def join(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    # S -> a2 (a1 S + b1) + b2 is again a decay and an addition: `join` is associative.
    _, states = jax.lax.associative_scan(join, (decay, new), axis=1)
    query = _for_all(query, states.shape[2])
    return states[:, -1], jnp.einsum("bthk,bthkp->bthp", query, states)


def _for_all(x, heads):
    """x [B, ..., H or 1, K] broadcast to all heads, [B, ..., H, K]."""
    return jnp.broadcast_to(x, (*x.shape[:-2], heads, x.shape[-1]))


def _chunk(state, xs):
    """One chunk by matrix products (Dao 2024, listing 1).

    An output is the sum over the chunk's earlier steps j of (query_i . key_j) decay(j..i) value_j,
    and what the state before the chunk gives; the state goes on with the decayed products of all
    steps.
    """
    query, key, value, log_decay, fresh = xs
    size = key.shape[1]
    documents = jnp.cumsum(fresh, axis=1)  # a number for each document; 0 began before
    # A step that begins a document decays nothing: what stood before it is cut off below.
    kept = jnp.cumsum(jnp.where(fresh[:, :, None, None], 0.0, log_decay), axis=1)
    same = documents[:, :, None] == documents[:, None, :]
    seen = (same & jnp.tri(size, dtype=bool))[..., None, None]  # [B, later, earlier, 1, 1]
    # The decay from step j to step i is exp(kept_i - kept_j); 0 across documents and backwards.
    between = jnp.exp(jnp.where(seen, kept[:, :, None] - kept[:, None], -jnp.inf))
    if log_decay.shape[-1] == 1:
        scores = jnp.einsum("bihk,bjhk->bijh", query, key) * between[..., 0]
    else:
        query, key = (_for_all(x, between.shape[3]) for x in (query, key))
        scores = jnp.einsum("bihk,bjhk,bijhk->bijh", query, key, between)
    out = jnp.einsum("bijh,bjhp->bihp", scores, value)
    first = (documents == 0)[:, :, None, None]
    since = jnp.exp(jnp.where(first, kept, -jnp.inf))
    out += jnp.einsum("bihk,bhkp->bihp", query * since, state)
    left = key * between[:, -1]
    state = since[:, -1][..., None] * state + jnp.einsum("bjhk,bjhp->bhkp", left, value)
    return state, out


def max_plus(
    log_key: Float[Array, "b t h"], log_decay: Float[Array, "b t h"], initial: Float[Array, "b h"]
) -> Float[Array, "b t h"]:
    """m_t = max(m_{t-1} + log_decay_t, log_key_t), the exponent by which RWKV's sums are divided,
    so that none overflows (Peng 2023, appendix D)."""

    def join(first, second):
        return first[0] + second[0], jnp.maximum(first[1] + second[0], second[1])

    log_key = log_key.at[:, 0].set(jnp.maximum(log_key[:, 0], initial + log_decay[:, 0]))
    return jax.lax.associative_scan(join, (log_decay, log_key), axis=1)[1]


def convolve(
    x: Float[Array, "b t d"],
    kernel: Float[Array, "w d"],
    before: Float[Array, "b v d"] | None = None,
    fresh: Bool[Array, "b t"] | None = None,
) -> tuple[Float[Array, "b t d"], Float[Array, "b v d"]]:
    """Each channel's causal convolution over the last W = v + 1 steps, and the last v inputs.

    kernel[-1] multiplies the present step. `before` are the v inputs before the first (zeros if
    None). Where `fresh` is True a new document begins, and no tap reaches back over it.

    One channel, kernel (1, 2), inputs 1, 2, 3: the outputs are 2, 1 + 4 = 5 and 2 + 6 = 8.
    """
    taps = len(kernel) - 1
    if before is None:
        before = jnp.zeros((len(x), taps, x.shape[-1]), x.dtype)
    whole = jnp.concatenate([before.astype(x.dtype), x], axis=1)
    length = x.shape[1]
    out = x * kernel[-1]
    documents = None if fresh is None else jnp.cumsum(fresh, axis=1)
    for back in range(1, taps + 1):
        past = whole[:, taps - back : taps - back + length]
        if documents is not None:
            earlier = jnp.pad(documents, ((0, 0), (back, 0)))[:, :length]
            past = jnp.where((earlier == documents)[..., None], past, 0)
        out += past * kernel[-1 - back]
    return out, whole[:, length:]
