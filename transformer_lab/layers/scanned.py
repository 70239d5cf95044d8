"""Equal layers one after the other: unrolled, or compiled once for all, with or without remat."""

from collections.abc import Callable
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

# What a layer keeps for the way back, by `remat`: besides its input nothing; the outputs of its
# products with kernels; the same in the host's memory.
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


def make_layers(stack: nn.Module, layer: Callable[..., nn.Module], count: int) -> None:
    """Gives a module, in its `setup`, `count` equal layers with the names layer_0, layer_1, ...

    `layer` makes one: a class of modules, or a `partial` of it with its settings. The module's
    `config` says `remat` and `scan_layers` (see `layers.config.StackConfig`).
    """
    made = layer
    if (kept := stack.config.remat) != "off":
        maker = layer if isinstance(layer, partial) else partial(layer)
        lifted = nn.remat(maker.func, policy=POLICIES[kept])
        made = partial(lifted, *maker.args, **maker.keywords)
    stack.one_layer, stack.layer = layer, [made() for _ in range(count)]


def run_layers(
    stack: nn.Module,
    x: Float[Array, "*shape"],
    each: Callable[[Any], tuple[Any, ...]] = lambda i: (),
) -> Float[Array, "*shape"]:
    """x through all layers; each(i) gives what layer i is called with behind x.

    With `scan_layers` one layer is compiled for all and takes parameters that are stacked, as a run
    then trains them (`ops.stacked`) or, where they are not, stacked inside the computation: initial
    values and numbers are the same either way. `i` is then an array.
    """
    config, count = stack.config, len(stack.layer)
    capturing = stack.is_mutable_collection("intermediates")
    if not config.scan_layers or stack.is_initializing() or capturing:
        for i, layer in enumerate(stack.layer):
            x = layer(x, *each(i))
        return x
    collections = [c for c in ("params", STATISTICS) if c in stack.variables]
    stacked = LAYERS in stack.variables["params"]
    own = {c: _stacked(stack.variables[c], count) for c in collections}
    hearing = [c for c in COLLECTIONS if stack.is_mutable_collection(c)]
    layer = stack.one_layer(parent=None)

    def body(x, xs):
        variables, i = xs
        return layer.apply(variables, x, *each(i), mutable=hearing)

    if config.remat != "off":
        body = jax.checkpoint(body, prevent_cse=False, policy=POLICIES[config.remat])
    x, left = jax.lax.scan(body, x, (own, jnp.arange(count)))
    for name, values in by_name(left.get(TOLD, {})).items():
        put(stack, TOLD, name, tuple(value.sum(axis=0) for value in values))
    if RENEWED in left and stacked:
        put(stack, RENEWED, LAYERS, left[RENEWED])
    elif RENEWED in left:
        for i in range(count):
            put(stack, RENEWED, f"layer_{i}", jax.tree.map(lambda x, i=i: x[i], left[RENEWED]))
    return x


def _stacked(variables, count):
    """A collection's variables of all layers as one tree with a leading axis; made if needed."""
    if LAYERS in variables:
        return variables[LAYERS]
    layers = [variables[f"layer_{i}"] for i in range(count) if f"layer_{i}" in variables]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers) if layers else {}
