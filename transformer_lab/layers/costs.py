"""What one layer of a stack costs for a token, computed from its settings alone."""

from itertools import chain
from typing import Any

from transformer_lab.layers.config import StackConfig
from transformer_lab.ops.activations import GATED


def active_parameters(config: StackConfig) -> int:
    """The number of entries of a layer's matrices that multiply one token's vector. With experts
    these are the token's experts, the shared ones and the router."""
    return _mixer(config) + _feed_forward(config)


def idle_parameters(config: Any) -> int:
    """The entries of the experts' kernels that do not work for a token, in all layers of a config
    and the stacks in it; 0 for a model without stacks."""
    stacks = (config, *(getattr(config, name, None) for name in ("decoder", "tower", "text")))
    layers = chain(*(stack.each_layer() for stack in stacks if isinstance(stack, StackConfig)))
    sparse = (layer for layer in layers if layer.feed_forward == "experts")
    return sum((one.experts.count - one.experts.top_k) * _expert(one) for one in sparse)


def state_numbers(config: StackConfig) -> int:
    """How many numbers a mixer's state has, which goes from token to token; 0 for attention."""
    mixer, heads = config.mixer, config.heads
    value = mixer.value_dim or config.head_dim
    keys = {
        "elu": config.head_dim,
        "relu": config.head_dim,
        "exponential": config.head_dim,
        "taylor": 1 + config.head_dim + config.head_dim**2,
    }[mixer.feature_map]
    return {
        "attention": 0,
        "linear": heads * keys * (value + 1),
        "retention": heads * config.head_dim * value,
        "gated": heads * config.head_dim * value,
        "s4d": config.width * mixer.state,
        "mamba": mixer.inner_width * mixer.state,
        "mamba2": mixer.inner_width * mixer.state,
        "rwkv": 2 * mixer.inner_width,
    }[mixer.kind]


def recurrence_flops(config: StackConfig) -> int:
    """Training FLOPs a token for the state, 15 for each of its numbers. Decaying it, adding a
    product and reading it are 5 operations a number, and the backward pass costs twice as much."""
    return 3 * 5 * state_numbers(config)


def attends(config: StackConfig) -> bool:
    """Whether the layer has attention, whose cost grows with the sequence's length."""
    return config.mixer.kind == "attention"


def _mixer(config: StackConfig) -> int:
    width, mixer = config.width, config.mixer
    queries, values = (
        config.heads * config.head_dim,
        config.heads * (mixer.value_dim or config.head_dim),
    )
    keys, inner = config.key_value_heads * config.head_dim, mixer.inner_width
    select, groups = mixer.step_rank + 2 * mixer.state, 2 * mixer.state_groups * mixer.state
    gated = width * (2 * queries + 3 * values)
    return {
        "attention": 2 * width * (queries + keys),
        "linear": width * (2 * queries + 2 * values),
        "retention": gated,
        "gated": gated + mixer.gate_rank * (width + queries),
        "s4d": 2 * width * width,
        "mamba": 3 * width * inner + inner * (select + mixer.step_rank),
        "mamba2": width * (3 * inner + groups + mixer.state_heads),
        "rwkv": 4 * width * inner,
    }[mixer.kind]


def _feed_forward(config: StackConfig) -> int:
    # Up and down, and the gate if there is one.
    matrices = 3 if config.activation in GATED else 2
    width, hidden, own = config.width, config.feed_forward_width, config.experts
    return {
        "none": 0,
        "dense": matrices * width * hidden,
        "experts": (own.top_k + own.shared) * _expert(config) + width * own.count,
        "shifted": width * (2 * hidden + width),
    }[config.feed_forward]


def _expert(config: StackConfig) -> int:
    own = config.experts
    matrices = 3 if (own.activation or config.activation) in GATED else 2
    return matrices * config.width * (own.width or config.feed_forward_width)
