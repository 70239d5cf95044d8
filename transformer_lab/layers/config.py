"""The settings that every family's stack shares."""

from dataclasses import dataclass

import jax.numpy as jnp

from transformer_lab.errors import LabError, nearest
from transformer_lab.ops.activations import ACTIVATIONS, GATED
from transformer_lab.ops.attention import IMPLEMENTATIONS

CHOICES = {
    "norm": ("layer_norm", "rms_norm", "none"),
    "norm_place": ("pre", "post"),
    "block": ("serial", "parallel"),
    "activation": (*ACTIVATIONS, *GATED),
    "attention_implementation": IMPLEMENTATIONS,
    "kernel_init": ("xavier_uniform", "normal"),
    "dtype": ("float32", "bfloat16"),
}


@dataclass(frozen=True)
class StackConfig:
    """A stack of attention and feed-forward blocks. Sizes are explicit, none follows another."""

    layers: int = 6
    width: int = 512  # D, of the residual stream
    heads: int = 8  # N
    kv_heads: int | None = None  # K; None: as many as heads. 1: multi-query (Shazeer 2019)
    head_dim: int = 64  # H
    feed_forward_width: int = 2048
    activation: str = "relu"
    norm: str = "layer_norm"
    norm_place: str = "post"  # post: Vaswani 2017; pre: Xiong 2020, with a final norm
    norm_epsilon: float = 1e-6
    norm_bias: bool = True
    attention_bias: bool = True
    feed_forward_bias: bool = True
    scale_attention: bool = True  # by 1 / sqrt(head_dim)
    block: str = "serial"  # parallel: attention and feed-forward read the same norm (PaLM)
    dropout: float = 0.1  # on embeddings and on what each sub-layer adds
    attention_dropout: float = 0.0  # on attention weights
    feed_forward_dropout: float = 0.0  # on the feed-forward's hidden units
    attention_implementation: str = "own"  # own | xla | cudnn; the last two have no weights dropout
    kernel_init: str = "xavier_uniform"
    init_std: float = 0.02  # of kernel_init = "normal"
    scan_layers: bool = False  # one compiled layer for all: faster compile, same numbers
    remat: bool = False  # recompute activations in the backward pass: less memory, same numbers
    dtype: str = "float32"  # of the computation; parameters, norms, softmax and loss: float32

    def __post_init__(self):
        for name, valid in CHOICES.items():
            value = getattr(self, name)
            if value not in valid:
                raise LabError(f'model.{name} = "{value}" is unknown{nearest(str(value), valid)}')
        for name in ("dropout", "attention_dropout", "feed_forward_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise LabError(f"model.{name} = {getattr(self, name)} is not in [0, 1)")
        for name in ("width", "heads", "head_dim", "feed_forward_width"):
            if getattr(self, name) < 1:
                raise LabError(f"model.{name} = {getattr(self, name)} must be at least 1")
        if self.key_value_heads < 1 or self.heads % self.key_value_heads:
            raise LabError(
                f"model.heads = {self.heads} is not a multiple of model.kv_heads = {self.kv_heads}"
            )
        if self.block == "parallel" and self.norm_place == "post":
            raise LabError('model.block = "parallel" needs model.norm_place = "pre"')
        if self.attention_dropout and self.attention_implementation != "own":
            raise LabError('model.attention_dropout needs model.attention_implementation = "own"')

    @property
    def key_value_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)
