"""How much gradient reaches back through time, in nets before any training."""

from functools import partial

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Float

from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.recurrent import RecurrentConfig, RecurrentStack
from transformer_lab.layers.stack import Stack
from transformer_lab.ops.recurrence import gradient_norms

GAINS = (0.5, 1.0, 2.0)  # factors on an Elman net's recurrent kernel, which starts orthogonal


def curves(length: int = 100, width: int = 32, seed: int = 0) -> dict[str, Float[np.ndarray, "t"]]:
    """How much of the last output's gradient reaches each input, over the last input's, by net.

    Elman's tanh net vanishes below a gain of 1 and explodes above (Pascanu 2013, section 2); an
    LSTM keeps what its forget gates keep, and attention reaches every time in one step. See
    `ops.recurrence.gradient_norms`.
    """
    x = jax.random.normal(jax.random.key(seed), (8, length, width))
    found = {}
    for gain in GAINS:
        found[f"Elman, gain {gain:g}"] = _norms(*_recurrent("elman", 0.0, gain, x), x)
    for bias in (0.0, 1.0, 3.0):
        found[f"LSTM, forget bias {bias:g}"] = _norms(*_recurrent("lstm", bias, 1.0, x), x)
    attention = Stack(
        StackConfig(
            layers=1, width=width, heads=4, head_dim=width // 4, feed_forward_width=2 * width,
            max_length=length, positions="none", norm_place="pre", dropout=0.0,
        ),
        1,
        causal=True,
    )  # fmt: skip
    found["attention"] = _norms(attention, jax.jit(attention.init)(jax.random.key(1), x), x)
    return found


def _recurrent(cell: str, forget_bias: float, gain: float, x) -> tuple[nn.Module, dict]:
    width = x.shape[-1]
    net = RecurrentStack(RecurrentConfig(cell=cell, width=width, forget_bias=forget_bias), width)
    variables = jax.jit(net.init)(jax.random.key(1), x)
    own = variables["params"]["layer_0"]["forward"]
    own["recurrent_kernel"] = gain * own["recurrent_kernel"]
    # Small inputs: tanh is near linear, so that the gain decides.
    own["input_kernel"] = 0.1 * own["input_kernel"] if cell == "elman" else own["input_kernel"]
    # Nets that differ in their weights alone are compiled once.
    return RecurrentStack(RecurrentConfig(cell=cell, width=width), width), variables


def _norms(net: nn.Module, variables: dict, x) -> Float[np.ndarray, "t"]:
    norms = np.asarray(_compiled(net, variables, x))
    return norms / norms[-1]


@partial(jax.jit, static_argnums=0)
def _compiled(net, variables, x):
    def outputs(x):
        out = net.apply(variables, x)
        return out[0] if isinstance(out, tuple) else out

    return gradient_norms(outputs, x)
