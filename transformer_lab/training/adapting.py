"""Adapting a trained model: which parameters train, which are frozen, and how both are joined.

`split` and `assemble` are functions on trees of parameters and know no model. Frozen parameters
have neither gradients nor optimizer state, and no checkpoint holds them.

A frozen kernel [in, out] may be kept in one byte or half a byte a number. It then is a small tree:
`int8` [in, out] with `absmax` [1, out], or `nf4` [in / 2, out], each byte of which holds two
successive inputs, with `absmax` [in / 64, out].
"""

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float, Key, Shaped

from transformer_lab.errors import LabError
from transformer_lab.ops.losses import STATISTICS
from transformer_lab.training.config import AdaptConfig
from transformer_lab.training.optimizer import LAYER, stack_sizes

# The paths of what each method trains besides adapt.train; "last" also trains whole layers.
PATTERNS = {
    "head": None,
    "last": r"(^|/)final_norm/",
    "bias": r"bias$",  # all biases: Ben Zaken 2022, section 3
    "lora": None,
    "adapters": r"_adapter/|norm/",  # Houlsby 2019, section 2.1: the norms too
}
BLOCK = 64  # numbers of an input column that share an absmax (Dettmers 2023, section 3)
# Quantiles of the normal distribution, with an exact zero (Dettmers 2023, appendix E).
NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip
Packed = dict[str, Shaped[Array, "..."]]


def split(params: Any, config: AdaptConfig, key: Key[Array, ""]) -> tuple[Any, Any]:
    """The trees of trained and frozen parameters, from which `assemble` makes the same model.

    lora replaces each target kernel [in, out] among the trained by lora_a [in, rank], drawn from
    the key with variance 1 / (3 in), and lora_b [rank, out], zero (Hu 2021, section 4.1). Raises:
    LabError for a pattern that finds nothing where it must.
    """
    if config.method == "full":
        return params, {}
    flat = flatten_dict(params, sep="/")
    chosen = trained_paths(flat, config)
    trained = {path: flat[path] for path in flat if path in chosen}
    frozen = {path: flat[path] for path in flat if path not in chosen}
    if config.method == "lora":
        for i, path in enumerate(sorted(lora_targets(frozen, config))):
            rows, columns = frozen[path].shape
            # Uniform in +-1 / sqrt(in), which is torch's kaiming_uniform with a = sqrt(5).
            draw = jax.random.uniform(
                jax.random.fold_in(key, i), (rows, config.rank), minval=-1, maxval=1
            )
            trained[f"{path}/lora_a"] = draw / math.sqrt(rows)
            trained[f"{path}/lora_b"] = jnp.zeros((config.rank, columns))
    frozen = {path: _pack(path, leaf, config.base) for path, leaf in frozen.items()}
    return unflatten_dict(trained, sep="/"), unflatten_dict(frozen, sep="/")


def assemble(
    trained: Any, frozen: Any, config: AdaptConfig, dropout_key: Key[Array, ""] | None = None
) -> Any:
    """The parameters that the model takes, from the trained and the frozen ones.

    lora: W + alpha / rank * a b, as large as W itself: the step computes and differentiates whole
    matrices, and saves the optimizer's memory alone. Its dropout zeroes rows of a, the input's
    features, the same for all tokens of a micro-batch, since no input is at hand here.
    """
    if config.method == "full":
        return trained
    factors, rest = lora_factors(trained)
    whole = _unpacked(frozen) | rest
    for i, (path, (a, b)) in enumerate(factors.items()):
        if config.dropout and dropout_key is not None:
            keep = 1.0 - config.dropout
            kept = jax.random.bernoulli(jax.random.fold_in(dropout_key, i), keep, (len(a), 1))
            # Dropping input feature i for W x is dropping row i of a.
            a = jnp.where(kept, a / keep, 0.0)
        whole[path] = whole[path] + config.alpha / config.rank * (a @ b)
    return unflatten_dict(whole, sep="/")


def lora_factors(trained: Any) -> tuple[dict[str, tuple[Any, Any]], dict[str, Any]]:
    """lora_a [in, rank] and lora_b [rank, out] by their kernel's path, and the other leaves."""
    rest = flatten_dict(trained, sep="/")
    targets = sorted(path.removesuffix("/lora_a") for path in rest if path.endswith("/lora_a"))
    pop = lambda path: (rest.pop(f"{path}/lora_a"), rest.pop(f"{path}/lora_b"))  # noqa: E731
    return {path: pop(path) for path in targets}, rest


def trained_paths(paths: Iterable[str], config: AdaptConfig) -> set[str]:
    """The paths that train as they are, running statistics included but not lora's targets. Raises:
    LabError if the method finds nothing to train."""
    paths, method, pattern = list(paths), config.method, PATTERNS[config.method]
    found = {path for path in paths if config.train and re.search(config.train, path)}
    own = {path for path in paths if pattern and re.search(pattern, path)}
    if method == "last":
        own |= _last_layers(paths, config.last_layers)
    if method == "head" and not found:
        raise LabError(
            f'adapt.train = "{config.train}" is found in no parameter\'s path, and '
            'adapt.method = "head" trains nothing else'
        )
    if method == "adapters" and not any("_adapter/" in path for path in own):
        raise LabError('adapt.method = "adapters" needs model.adapter_width of at least 1')
    if method in ("bias", "last") and not own:
        raise LabError(f'adapt.method = "{method}": the model has nothing of the kind to train')
    return found | own | {path for path in paths if path.startswith(f"{STATISTICS}/")}


def lora_targets(flat: dict[str, Any], config: AdaptConfig) -> list[str]:
    """The paths of the frozen kernels that lora changes. Raises: LabError if there are none."""
    targets = [path for path in flat if re.search(config.targets, path)]
    if not targets:
        raise LabError(
            f'adapt.targets = "{config.targets}" is found in no frozen parameter\'s path'
        )
    for path in targets:
        if len(flat[path].shape) != 2:
            raise LabError(
                f'adapt.targets = "{config.targets}" takes in {path}, which is no matrix'
            )
    return targets


def _last_layers(paths: list[str], count: int) -> set[str]:
    sizes = stack_sizes(paths)
    for stack, size in sizes.items():
        if count > size:
            raise LabError(f"adapt.last_layers = {count}, but {stack} has {size} layers")
    layers = {path: LAYER.match(path) for path in paths}
    return {p for p, m in layers.items() if m and int(m[2]) >= sizes[m[1]] - count}


def _pack(path, leaf, base):
    """A frozen array as it is stored; one that the asked-for type does not suit stays float32."""
    if base == "bfloat16" and leaf.ndim == 2:
        return leaf.astype(jnp.bfloat16)
    kernel = leaf.ndim == 2 and path.endswith("/kernel")
    suits = {"int8": kernel, "nf4": kernel and len(leaf) % 2 == 0}
    return quantize(leaf, base) if suits.get(base) else leaf


def _unpacked(frozen):
    """The frozen arrays by path, converted to float32."""
    flat = flatten_dict(frozen, is_leaf=lambda _, x: "absmax" in x, sep="/")
    return {
        path: dequantize(leaf) if isinstance(leaf, dict) else leaf.astype(jnp.float32)
        for path, leaf in flat.items()
    }


def pack(model: nn.Module, params: Any, base: str) -> tuple[nn.Module, Any]:
    """A model that reads packed parameters, and these: kernels in `base`, all else as it is.

    Each call unpacks the kernels anew, one after the other, so that of a trained network little
    more than the packed numbers is in memory.
    """

    def apply(self, variables, *args, **kwargs):
        # Behind the barrier the compiler cannot unpack them once, before a loop over tokens.
        packed = jax.lax.optimization_barrier(variables["params"])
        whole = unflatten_dict(_unpacked(packed), sep="/")
        return kind.apply(self, {**variables, "params": whole}, *args, **kwargs)

    kind = type(model)
    reader = type(kind.__name__, (kind,), {"apply": apply, "__module__": kind.__module__})
    flat = flatten_dict(params, sep="/")
    packed = {path: _pack(path, leaf, base) for path, leaf in flat.items()}
    fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(model) if f.init}
    return reader(**fields), unflatten_dict(packed, sep="/")


def quantize(kernel: Float[Array, "i o"], base: str) -> Packed:
    """A kernel in one byte a number (int8) or half a byte (nf4), with the scales to restore it.

    int8 scales each column by its greatest magnitude; nf4 each block of 64 inputs of a column. nf4
    needs an even number of inputs: the caller ensures it. The column (0.5, -1.0) becomes int8 (64,
    -127) with absmax 1.
    """
    if base == "int8":
        absmax = jnp.abs(kernel).max(axis=0, keepdims=True)
        scaled = kernel / jnp.where(absmax > 0, absmax, 1) * 127
        return {"int8": jnp.round(scaled).astype(jnp.int8), "absmax": absmax}
    rows = kernel.shape[0]
    padded = jnp.pad(kernel, ((0, -rows % BLOCK), (0, 0)))
    blocks = padded.reshape(-1, BLOCK, kernel.shape[1])
    absmax = jnp.abs(blocks).max(axis=1)
    scaled = (blocks / jnp.where(absmax > 0, absmax, 1)[:, None]).reshape(padded.shape)[:rows]
    middles = (NF4[1:] + NF4[:-1]) / 2
    # The nearest of the 16 values: the borders are the middles between neighbours.
    codes = jnp.searchsorted(middles, scaled).astype(jnp.uint8)
    return {"nf4": codes[0::2] << 4 | codes[1::2], "absmax": absmax}


def dequantize(packed: Packed) -> Float[Array, "i o"]:
    """The float32 kernel that a quantized one stands for, rounding errors included."""
    absmax = packed["absmax"]
    if "int8" in packed:
        return packed["int8"].astype(jnp.float32) * (absmax / 127)
    both = packed["nf4"]
    codes = jnp.stack([both >> 4, both & 15], axis=1).reshape(-1, both.shape[1])
    scale = jnp.repeat(absmax, BLOCK, axis=0)[: codes.shape[0]]
    return jnp.asarray(NF4)[codes] * scale
