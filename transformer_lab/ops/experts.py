"""Mixtures of experts: which tokens go to which experts, and what the experts compute from them.

Letters: B examples, T tokens of an example, E experts, K experts a token, C slots of an expert (its
capacity), D model dim, F hidden units. Each example is a group of its own: its tokens compete for
an expert's slots among themselves, so that neither the batch nor the mesh changes where a token
goes.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from transformer_lab.ops.layout import ROW_AXES, constrain, current_mesh, split_of

Hidden = Callable[[Float[Array, "... f"], Float[Array, "... f"] | None], Float[Array, "... f"]]


class Routes(NamedTuple):
    """The experts each token is sent to, the weights of their outputs, and its slots there."""

    expert: Int[Array, "b t k"]
    weight: Float[Array, "b t k"]  # 0 where the token was dropped
    place: Int[Array, "b t k"]  # the slot: how many tokens of the example ask this expert earlier


def choose_experts(
    probabilities: Float[Array, "b t e"],
    k: int,
    capacity: int | None,
    real: Bool[Array, "b t"] | None = None,
    *,
    renormalize: bool,
) -> Routes:
    """Token choice: each token goes to its k most probable experts (Switch, GShard, Mixtral).

    An expert takes the first `capacity` tokens of an example, all first choices before any second
    choice (Lepikhin 2020, algorithm 1). Dropped tokens get nothing from it and pass on through the
    residual connection; with None nothing is dropped. `renormalize` makes the weights of a token
    sum to 1 before any is dropped. Padding, where `real` is False, goes nowhere.

    With capacity 1, of two tokens that both prefer expert 0 the first gets slot 0 there; the second
    gets slot 1, and so weight 0.
    """
    weight, expert = jax.lax.top_k(probabilities, k)
    if renormalize:
        weight = weight / weight.sum(axis=-1, keepdims=True)
    if real is not None:
        weight = jnp.where(real[..., None], weight, 0.0)
    b, t, e = probabilities.shape
    # One line for each choice, [B, K * T, E], all first choices first: a running count gives slots.
    asked = jax.nn.one_hot(jnp.swapaxes(expert, 1, 2).reshape(b, k * t), e, dtype=jnp.int32)
    if real is not None:
        asked = asked * jnp.tile(real, (1, k))[..., None]
    place = ((jnp.cumsum(asked, axis=1) - 1) * asked).sum(axis=-1)
    place = jnp.swapaxes(place.reshape(b, k, t), 1, 2)
    if capacity is not None:
        weight = jnp.where(place < capacity, weight, 0.0)
    return Routes(expert, weight, place)


def choose_tokens(
    probabilities: Float[Array, "b t e"], capacity: int, real: Bool[Array, "b t"] | None = None
) -> Float[Array, "b t e c"]:
    """Expert choice: each expert takes its `capacity` most probable tokens (Zhou 2022, 3.2).

    Returns the weight of each token in each slot of each expert. All experts are full; a token may
    be taken by many of them, or by none. A token's experts depend on later tokens, so it does not
    suit a model that goes from left to right.
    """
    if real is not None:
        probabilities = jnp.where(real[..., None], probabilities, 0.0)
    weight, token = jax.lax.top_k(jnp.swapaxes(probabilities, 1, 2), capacity)  # [B, E, C]
    return jnp.einsum("bect,bec->btec", jax.nn.one_hot(token, probabilities.shape[1]), weight)


def places(routes: Routes, experts: int, capacity: int) -> Float[Array, "b t e c"]:
    """The weights of token choice as an array over experts and slots, 0 for other tokens' slots."""
    slot = jax.nn.one_hot(routes.place, capacity)
    expert = jax.nn.one_hot(routes.expert, experts)
    return jnp.einsum("btke,btkc,btk->btec", expert, slot, routes.weight)


def capacity_of(tokens: int, experts: int, k: int, factor: float) -> int:
    """The slots an expert has for one example of so many tokens. That is `factor` times an even
    share, k * tokens / experts, rounded up: at least 1, at most `tokens`."""
    return min(tokens, max(1, math.ceil(factor * k * tokens / experts)))


def by_places(
    x: Float[Array, "b t d"],
    weights: Float[Array, "b t e c"],
    up: Float[Array, "e d f"],
    gate: Float[Array, "e d f"] | None,
    down: Float[Array, "e f d"],
    act: Hidden,
) -> Float[Array, "b t d"]:
    """The experts applied to all slots, full or not, by einsum (Lepikhin 2020, algorithm 2).

    On a mesh with an expert axis each device keeps its own experts: an all-to-all brings the slots
    of a device's examples to the experts, and another brings their outputs back.
    """
    laid = ("experts", "rows apart", None, None)
    weights = constrain(weights, "rows", None, None, None)
    taken = jnp.einsum("btec,btd->ebcd", (weights > 0).astype(x.dtype), x)
    taken = constrain(_exchanged(taken, 0, 1), *laid)
    gates = None if gate is None else _products(taken, gate)
    made = constrain(act(_products(taken, up), gates), "experts", "rows apart", None, "hidden")
    out = _exchanged(constrain(_products(made, down), *laid), 1, 0)
    return constrain(
        jnp.einsum("ebcd,btec->btd", out, weights.astype(x.dtype)), "rows", "length", "width"
    )


def _exchanged(x, split, joined):
    """x [E, B, C, D], split over the expert axis along `joined`, split along `split` instead.

    Between two such calls the examples stand in another order, each with all of its slots. Where
    the mesh does not divide the examples or the experts, the compiler is left to move the data.
    """
    mesh = current_mesh()
    if mesh is None or mesh.shape.get("expert", 1) == 1:
        return x
    rows = tuple(a for a in ROW_AXES if mesh.shape.get(a, 1) > 1)
    if x.shape[1] % math.prod(mesh.shape[a] for a in rows) or x.shape[0] % mesh.shape["expert"]:
        return x
    apart = tuple(a for a in rows if a != "expert")
    specs = P(None, rows), P("expert", apart or None)
    move = partial(jax.lax.all_to_all, axis_name="expert", tiled=True)
    moved = jax.shard_map(
        partial(move, split_axis=split, concat_axis=joined),
        in_specs=specs[split], out_specs=specs[joined], check_vma=False,
    )  # fmt: skip
    return moved(x)


@jax.custom_vjp
def _products(x, kernel):
    """x [E, B, C, in] times each expert's kernel [E, in, out], which is read in the type of x; its
    gradient is summed, over the devices too, in its own type."""
    kernel = constrain(kernel.astype(x.dtype), "experts", None, None)
    return jnp.einsum("ebci,eio->ebco", x, kernel)


def _products_backward(kept, back):
    x, kernel = kept
    read = constrain(kernel.astype(x.dtype), "experts", None, None)
    sums = jnp.einsum("ebci,ebco->eio", x, back, preferred_element_type=kernel.dtype)
    return jnp.einsum("ebco,eio->ebci", back, read), constrain(sums, "experts", None, None)


_products.defvjp(lambda x, kernel: (_products(x, kernel), (x, kernel)), _products_backward)


def sorted_by_expert(
    x: Float[Array, "b t d"],
    routes: Routes,
    up: Float[Array, "e d f"],
    gate: Float[Array, "e d f"] | None,
    down: Float[Array, "e f d"],
    act: Hidden,
) -> Float[Array, "b t d"]:
    """The experts applied to their tokens, sorted by expert, with `jax.lax.ragged_dot`.

    No slot is empty and no token is dropped; the cost is K products a token. On a mesh each device
    sorts the tokens of its examples. Over the expert axis it gathers the examples of the devices
    that hold the other experts, applies its own experts, and scatters the sums back. Kernels are
    gathered in the type of x, and their gradients are summed over devices in their own type.
    """
    mesh = current_mesh()
    if mesh is None:
        return _serve(x, *routes[:2], up, gate, down, act=act, axis=None)
    rows = P(tuple(a for a in ROW_AXES if mesh.shape.get(a, 1) > 1) or None)
    wide = split_of(("experts", "parts", "hidden"), up.shape, mesh)
    narrow = split_of(("experts", "hidden", "parts"), down.shape, mesh)
    splits = wide, wide, narrow
    local = partial(_serve, act=act, axis="expert" if wide[0] else None, splits=splits)
    specs = (rows, rows, rows, wide, None if gate is None else wide, narrow)
    mapped = jax.shard_map(local, in_specs=specs, out_specs=rows, check_vma=False)
    return mapped(x, *routes[:2], up, gate, down)


def _serve(x, expert, weight, *kernels, act, axis, splits=((), (), ())):
    """What this device's experts add to each token of the examples that it gathers."""
    up, gate, down = (
        None if kernel is None else _read(kernel, x.dtype, split[1:])
        for kernel, split in zip(kernels, splits, strict=True)
    )
    first = 0
    if axis is not None:
        gathered = partial(jax.lax.all_gather, axis_name=axis, axis=0, tiled=True)
        x, expert, weight = map(gathered, (x, expert, weight))
        first = jax.lax.axis_index(axis) * up.shape[0]
    b, t, d = x.shape
    k, here = expert.shape[-1], up.shape[0]
    # Choices sorted by expert make one ragged product; those of experts elsewhere weigh nothing.
    mine = (expert >= first) & (expert < first + here) & (weight > 0)
    number = jnp.where(mine, expert - first, here).reshape(-1)  # other devices' come last
    order = jnp.argsort(number, stable=True)
    counts = jnp.bincount(number, length=here + 1)[:here].astype(jnp.int32)
    taken = jnp.repeat(x.reshape(b * t, d), k, axis=0)[order]
    made = jax.lax.ragged_dot(taken, up, counts)
    made = act(made, None if gate is None else jax.lax.ragged_dot(taken, gate, counts))
    out = jax.lax.ragged_dot(made, down, counts)
    served = jnp.where(mine.reshape(-1), weight.reshape(-1), 0.0)[order, None]
    out = jnp.where(served > 0, out * served.astype(x.dtype), 0)
    out = jnp.zeros_like(out).at[order].set(out).reshape(b, t, k, d).sum(axis=2)
    if axis is not None:
        out = jax.lax.psum_scatter(out, axis, scatter_dimension=0, tiled=True)
    return out


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _read(kernel, dtype, split):
    """A device's part of kernels [E, in, out] in this type, brought together over the axes that
    split the last two dimensions; its gradient is summed and scattered in the kernel's own type."""
    kernel = kernel.astype(dtype)
    for dimension, axes in enumerate(split, start=1):
        if axes:
            kernel = jax.lax.all_gather(kernel, axes, axis=dimension, tiled=True)
    return kernel


def _read_backward(dtype, split, kept, back):
    back = back.astype(kept.dtype)
    for dimension, axes in enumerate(split, start=1):
        if axes:
            back = jax.lax.psum_scatter(back, axes, scatter_dimension=dimension, tiled=True)
    return (back,)


_read.defvjp(lambda kernel, *rest: (_read(kernel, *rest), kernel[:0]), _read_backward)


class Balance(NamedTuple):
    """Statistics of a routing, each summed over the real tokens (and `tokens`, their number)."""

    balance: Float[Array, ""]  # each example's E sum_e f_e p_e (Fedus 2021, eq. 4) times its tokens
    z: Float[Array, ""]  # squared logsumexp of the router's logits (Zoph 2022, eq. 5)
    entropy: Float[Array, ""]  # entropy of each token's distribution over the experts, in nats
    variation: Float[Array, ""]  # standard deviation over mean of the experts' tokens, times tokens
    dropped: Float[Array, ""]  # choices of tokens that were dropped, divided by K
    tokens: Float[Array, ""]


def balance_of(
    logits: Float[Array, "b t e"],
    probabilities: Float[Array, "b t e"],
    taken: Float[Array, "b t e"],
    asked: Float[Array, "b t e"],
    real: Bool[Array, "b t"] | None,
) -> Balance:
    """The statistics of a routing from its logits, probabilities and choices. `asked` is 1 / K at
    the experts that a token wanted, `taken` at those that took it."""
    real = jnp.ones(logits.shape[:2]) if real is None else real.astype(jnp.float32)
    experts, each = logits.shape[-1], jnp.maximum(real.sum(axis=1), 1.0)
    # f_e, the share of tokens that ask expert e (no gradient), and p_e, its mean probability.
    share = jnp.einsum("bte,bt->be", jax.lax.stop_gradient(asked), real) / each[:, None]
    mean = jnp.einsum("bte,bt->be", probabilities, real) / each[:, None]
    logs = jnp.log(jnp.maximum(probabilities, jnp.finfo(jnp.float32).tiny))
    tokens = real.sum()
    load = jnp.einsum("bte,bt->e", taken, real)
    variation = load.std() / jnp.maximum(load.mean(), 1e-9)
    sums = partial(jnp.einsum, "bt,bt->", real)
    return Balance(
        balance=(experts * (share * mean).sum(axis=1) * real.sum(axis=1)).sum(),
        z=sums(jnp.square(jax.nn.logsumexp(logits, axis=-1))),
        entropy=sums(-(probabilities * logs).sum(axis=-1)),
        variation=variation * tokens,
        dropped=sums((asked - taken).sum(axis=-1)),
        tokens=tokens,
    )
