"""What a model costs: parameters, FLOPs, memory, device-days; arithmetic alone."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from transformer_lab.errors import LabError
from transformer_lab.layers.config import StackConfig
from transformer_lab.models import parameter_shapes
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.ops.activations import GATED
from transformer_lab.ops.losses import STATISTICS

STACKS = {"decoder": "decoder", "encoder": "encoder", "vision": "encoder"}  # of equal layers


def parameter_groups(kind: str, config: Any) -> dict[str, int]:
    """Parameters by the tree's top-level names; of a stack's equal layers one is traced."""
    layers, one = {}, config
    if kind in STACKS:
        layers, one = {STACKS[kind]: config.layers}, replace(config, layers=1)
    elif kind == "encoder_decoder":
        layers = {"encoder": config.layers, "decoder": config.decoder.layers}
        one = replace(config, layers=1, decoder_layers=1)
    shapes = parameter_shapes(kind, one)
    groups = {name: _numbers(tree) for name, tree in shapes.items() if name != STATISTICS}
    for stack, count in layers.items():
        groups[stack] += (count - 1) * _numbers(shapes[stack]["layer_0"])
    return groups


def matmul_parameters(config: DecoderConfig) -> int:
    """Parameters that multiply each token's vector: all matrices and the head (a tied one too).

    Looking an embedding up costs nothing; Transformer-XL's projection of distances is the same for
    all tokens of a batch and left out.
    """
    queries, keys = config.heads * config.head_dim, config.key_value_heads * config.head_dim
    attention = 2 * config.width * (queries + keys)
    matrices = 3 if config.activation in GATED else 2
    feed_forward = matrices * config.width * config.feed_forward_width
    narrow = config.embedding_width
    ends = config.table_rows * (narrow or config.width) + 2 * config.width * (narrow or 0)
    return config.layers * (attention + feed_forward) + ends


def training_flops(config: DecoderConfig, length: int | None = None) -> int:
    """FLOPs a token, forward and backward: 6 N + 12 L N_heads H T (Chowdhery 2022, appendix B).

    The backward pass costs twice the forward one, 2 N (Kaplan 2020, table 1). Attention counts its
    full square, though masks and windows leave half of it or less; recomputation is not counted.
    """
    length = config.max_length if length is None else length
    attention = 12 * config.layers * config.heads * config.head_dim * length
    return 6 * matmul_parameters(config) + attention


def flops_a_token(config: Any, shapes: Any) -> float:
    """FLOPs a token of a training step of any model whose parameters have these shapes.

    Those of `training_flops` for a decoder; 6 N for others, where N leaves embedding tables out.
    """
    if isinstance(config, DecoderConfig):
        return float(training_flops(config))
    leaves = jax.tree_util.tree_flatten_with_path(shapes)[0]
    return 6.0 * sum(x.size for path, x in leaves if "embedding" not in jax.tree_util.keystr(path))


def cache_bytes(config: StackConfig, length: int = 1, dtype: str = "bfloat16") -> int:
    """Bytes of keys and values that `length` positions of one sequence leave in a decoding cache.

    A window bounds it: a sequence never holds more positions than that.
    """
    held = min(length, config.window) if config.window else length
    a_layer = 2 * config.key_value_heads * config.head_dim * jnp.dtype(dtype).itemsize
    return held * config.layers * a_layer


def state_bytes(parameters: int) -> int:
    """Bytes of float32 parameters and Adam's two moments (Kingma 2015, algorithm 1)."""
    return 3 * 4 * parameters


def device_days(
    flops_per_token: int | float,
    tokens: float,
    devices: int,
    peak_flops: float,
    utilisation: float,
) -> tuple[float, float]:
    """Device-days of a training run, and days on the clock with so many devices.

    `utilisation` is the share of `peak_flops`, FLOP/s of one device, that the model's own FLOPs
    make (Chowdhery 2022, section 4.1).
    """
    if min(tokens, devices, peak_flops) <= 0:
        raise LabError("tokens, devices and peak_tflops must be more than 0")
    if not 0 < utilisation <= 1:
        raise LabError(f"utilisation = {utilisation} is not in (0, 1]")
    days = flops_per_token * tokens / (peak_flops * utilisation) / 86_400
    return days, days / devices


def _numbers(tree: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
