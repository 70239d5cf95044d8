"""The mixers by name."""

from transformer_lab.layers.linear_mixers import RWKV, Gated, Linear, Retention
from transformer_lab.layers.state_spaces import S4D, Mamba, Mamba2

MIXERS = {
    "linear": Linear,
    "retention": Retention,
    "gated": Gated,
    "s4d": S4D,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "rwkv": RWKV,
}
