"""What one layer of a stack costs for a token, computed from its settings alone."""

from itertools import chain
from typing import Any

from transformer_lab.layers.block_config import mixer_of
from transformer_lab.layers.config import StackConfig
from transformer_lab.ops.activations import GATED


def active_parameters(config: StackConfig) -> int:
    """The number of entries of a layer's matrices that multiply one token's vector. With experts
    these are the token's experts, the shared ones and the router."""
    forwards = 2 if config.block == "conformer" else 1
    taps = config.convolution_width  # of a convolution module, with its three products
    module = (3 * config.width + taps) * config.width if taps else 0
    return _mixer(config) + forwards * _feed_forward(config) + module


def idle_parameters(config: Any) -> int:
    """The entries of the experts' kernels that do not work for a token, in all layers of a config
    and the stacks in it; 0 for a model without stacks."""
    stacks = (config, *(getattr(config, name, None) for name in ("decoder", "tower", "text")))
    layers = chain(*(stack.each_layer() for stack in stacks if isinstance(stack, StackConfig)))
    sparse = (layer for layer in layers if layer.feed_forward == "experts")
    return sum((one.experts.count - one.experts.top_k) * _expert(one) for one in sparse)


def state_numbers(config: StackConfig) -> int:
    """How many numbers a mixer's state has, which goes from token to token; 0 for attention."""
    return 0 if attends(config) else mixer_of(config.mixer.kind).numbers(config)


def recurrence_flops(config: StackConfig) -> int:
    """Training FLOPs a token for the state, 15 for each of its numbers. Decaying it, adding a
    product and reading it are 5 operations a number, and the backward pass costs twice as much."""
    return 3 * 5 * state_numbers(config)


def attends(config: StackConfig) -> bool:
    """Whether the layer has attention, whose cost grows with the sequence's length."""
    return config.mixer.kind == "attention"


def _mixer(config: StackConfig) -> int:
    if not attends(config):
        return mixer_of(config.mixer.kind).weights(config)
    return 2 * config.width * (config.heads + config.key_value_heads) * config.head_dim


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
