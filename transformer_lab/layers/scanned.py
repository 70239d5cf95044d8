"""Runs the layers of a stack: unrolled, or one compiled for all, with or without remat."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_lab.layers.basic import PRODUCT
from transformer_lab.layers.told import COLLECTIONS, RENEWED, TOLD, by_name, put
from transformer_lab.ops.losses import STATISTICS
from transformer_lab.ops.stacked import LAYERS

# What a layer keeps for the backward pass besides its input, by `remat`: nothing; the outputs of
# its products with kernels; the same in the host's memory.
POLICIES = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.save_only_these_names(PRODUCT),
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[PRODUCT],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


def make_layers(stack: nn.Module, layers: Sequence[Callable[[], nn.Module]]) -> None:
    """Gives a module, in its `setup`, layers with the names layer_0, layer_1, ...

    Each entry makes one: a class of modules, or a `partial` of it with its settings. Entries that
    are equal make equal layers. The module's `config` says `remat` and `scan_layers` (see
    `layers.config.StackConfig`).
    """
    kept, made = stack.config.remat, []
    for layer in layers:
        if kept != "off":
            maker = layer if isinstance(layer, partial) else partial(layer)
            lifted = nn.remat(maker.func, policy=POLICIES[kept])
            layer = partial(lifted, *maker.args, **maker.keywords)
        made.append(layer())
    stack.makers, stack.layer = tuple(layers), made


def period_of(makers: Sequence[Any]) -> int:
    """The smallest period of the layers' kinds: 1 if all are equal, 2 if two kinds alternate."""
    said = [(m.func, m.args, m.keywords) if isinstance(m, partial) else m for m in makers]
    sizes = (n for n in range(1, len(said) + 1) if len(said) % n == 0)
    return next(n for n in sizes if said == said[:n] * (len(said) // n))


def run_layers(
    stack: nn.Module,
    x: Float[Array, "*shape"],
    each: Callable[[Any], tuple[Any, ...]] = lambda i: (),
) -> Float[Array, "*shape"]:
    """Passes x through all layers; each(i) gives the further arguments of layer i.

    With `scan_layers` one period of the layers' kinds (one layer, where all are equal) is compiled
    for all. Its parameters are stacked, as a run then trains them (`ops.stacked`), or else stacked
    inside the computation: initial values and numbers are the same either way. `i` is then an
    array.
    """
    config, count = stack.config, len(stack.layer)
    capturing = stack.is_mutable_collection("intermediates")
    if not config.scan_layers or stack.is_initializing() or capturing:
        for i, layer in enumerate(stack.layer):
            x = layer(x, *each(i))
        return x
    collections = [c for c in ("params", STATISTICS) if c in stack.variables]
    stacked, period = LAYERS in stack.variables["params"], period_of(stack.makers)
    own = [
        {c: _stacked(stack.variables[c], slice(first, count, period)) for c in collections}
        for first in range(period)
    ]
    # What the layers tell is collected in the scan, since no Flax variable leaves its body.
    hearing = [c for c in COLLECTIONS if stack.is_mutable_collection(c)]
    layers = [make(parent=None) for make in stack.makers[:period]]

    def body(x, xs):
        variables, i = xs
        heard = []
        for j, layer in enumerate(layers):
            x, left = layer.apply(variables[j], x, *each(i + j), mutable=hearing)
            heard.append(left)
        return x, heard

    if config.remat != "off":
        body = jax.checkpoint(body, prevent_cse=False, policy=POLICIES[config.remat])
    x, heard = jax.lax.scan(body, x, (own, jnp.arange(0, count, period)))
    for left in heard:
        for name, values in by_name(left.get(TOLD, {})).items():
            put(stack, TOLD, name, tuple(value.sum(axis=0) for value in values))
    new = [left[RENEWED] for left in heard if RENEWED in left]
    if new and stacked:  # the layers in order again
        joined = lambda *each: jnp.stack(each, axis=1).reshape(count, *each[0].shape[1:])  # noqa: E731
        put(stack, RENEWED, LAYERS, jax.tree.map(joined, *new))
    elif new:
        for i in range(count):
            part = jax.tree.map(lambda x, n=i // period: x[n], heard[i % period].get(RENEWED))
            if part is not None:
                put(stack, RENEWED, f"layer_{i}", part)
    return x


def _stacked(variables, some):
    """A collection's variables for a slice of the layers, as one tree with a leading layer axis."""
    if LAYERS in variables:
        whole = variables[LAYERS]
        return whole if some.step == 1 else jax.tree.map(lambda x: x[some], whole)
    numbers = range(some.start, some.stop, some.step)
    layers = [variables[f"layer_{i}"] for i in numbers if f"layer_{i}" in variables]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers) if layers else {}
