"""The two forms of a stack's parameters: each layer for itself, and all layers in one array.

`decoder/layer_0/norm/scale` [d], `decoder/layer_1/norm/scale` [d], ... is the canonical form: in
checkpoints, in files of other libraries, in every pattern on paths. With `scan_layers` a run trains
`decoder/layers/norm/scale` [layers, d] instead, so that no step has to stack the parameters first.
"""

import re
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import jax
import jax.numpy as jnp

LAYERS = "layers"
_PLACE = re.compile(rf"(^|/){LAYERS}/")


def stack_layers(tree: Any, config: Any) -> Any:
    """The tree with the layers of each stack that `config` scans joined in arrays [layers, ...].

    The tree may be anything that holds parameters, such as an optimizer's state with its moments.
    """

    def gather(node, where):
        if not isinstance(node, dict):
            return _below(node, gather)
        names = [f"layer_{i}" for i in range(len(node)) if f"layer_{i}" in node]
        if not (names and _scans(config, where) and _equal([node[name] for name in names])):
            names = []
        rest = {k: gather(v, (*where, k)) for k, v in node.items() if k not in names}
        if not names:
            return rest
        layers = [node[name] for name in names]
        return rest | {LAYERS: jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}

    return gather(tree, ())


def unstack_layers(tree: Any) -> Any:
    """The tree in its canonical form, each layer by itself: the inverse of `stack_layers`."""

    def part(node, where):
        if not isinstance(node, dict):
            return _below(node, part)
        rest = {k: part(v, (*where, k)) for k, v in node.items() if k != LAYERS}
        stacked = node.get(LAYERS)
        if stacked is None:
            return rest
        count = len(jax.tree.leaves(stacked)[0])
        each = {f"layer_{i}": jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count)}
        return rest | each

    return part(tree, ())


def of_paths(function: Callable[[str], float], path: str, leaf: Any) -> Any:
    """function(path); for a leaf [layers, ...] the values of all layers' paths, broadcastable."""
    if not (place := _PLACE.search(path)):
        return function(path)
    names = (f"{place[1]}layer_{i}/" for i in range(len(leaf)))
    values = [function(_PLACE.sub(name, path, count=1)) for name in names]
    if len(set(values)) == 1:
        return values[0]
    return jnp.asarray(values).reshape(-1, *(1,) * (leaf.ndim - 1))


def _below(node, function):
    """Applies the function to the outermost dictionaries inside a node that is none itself."""
    if jax.tree_util.all_leaves([node]):
        return node
    return jax.tree.map(
        lambda x: function(x, ()) if isinstance(x, dict) else x,
        node,
        is_leaf=lambda x: isinstance(x, dict),
    )


def _equal(layers):
    """Whether all layers hold arrays of the same names, shapes and types, as a hybrid's do not."""
    said = [jax.tree.map(lambda x: (x.shape, x.dtype), layer) for layer in layers]
    return said.count(said[0]) == len(said)


def _scans(config, where):
    """Whether the config says `scan_layers` for the stack at this path of the parameters."""
    for name in where:
        inner = getattr(config, name, None)
        config = inner if is_dataclass(inner) else config
    return getattr(config, "scan_layers", False)
