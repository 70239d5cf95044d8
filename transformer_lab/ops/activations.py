"""The feed-forward non-linearities under the names by which papers and configs call them."""

from collections.abc import Callable

import jax

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),  # erf: BERT, ViT
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),  # GPT-2
    "gelu_quick": lambda x: x * jax.nn.sigmoid(1.702 * x),  # the original CLIP
    "silu": jax.nn.silu,
    "tanh": jax.numpy.tanh,
    "identity": lambda x: x,
}

# act(x W_gate) * (x W_up) (Shazeer 2020): name -> the activation of the gate.
GATED = {
    "glu": "sigmoid",
    "bilinear": "identity",
    "reglu": "relu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "swiglu": "silu",
}
ACTIVATIONS["sigmoid"] = jax.nn.sigmoid
