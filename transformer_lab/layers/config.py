"""The settings that the stacks of all model families share."""

import math
from dataclasses import dataclass, replace

import jax.numpy as jnp

from transformer_lab.errors import LabError, at_least, chosen, fractions, known
from transformer_lab.layers.block_config import KINDS, ExpertsConfig, MixerConfig
from transformer_lab.ops.activations import ACTIVATIONS, GATED
from transformer_lab.ops.kernels import IMPLEMENTATIONS
from transformer_lab.ops.products import NUMBERS

# Kinds of positions: added to the tokens' vectors, or part of the attention's scores.
ADDED = (
    "learned", "sinusoidal", "sinusoidal_halves", "binary", "index", "index_scaled",
)  # fmt: skip
RELATIVE = ("rope", "alibi", "t5", "transformer_xl")
FRACTIONS = (  # settings from 0 to less than 1, of which a family may lack some
    "norm_epsilon", "final_norm_epsilon", "dropout", "attention_dropout", "feed_forward_dropout",
    "head_dropout", "drop_path",
)  # fmt: skip
# experts: see `ExpertsConfig`; shifted: RWKV's channel mixing; none: blocks have no feed-forward
FEED_FORWARDS = ("dense", "experts", "shifted", "none")
CHOICES = {
    "positions": ("none", *ADDED, *RELATIVE),
    "rope_scaling": ("none", "linear", "llama3", "yarn"),
    "norm": ("layer_norm", "rms_norm", "dyt", "none"),
    "norm_place": ("pre", "post", "deep"),
    "block": ("serial", "parallel", "parallel_two_norms", "conformer"),
    "convolution_norm": ("batch_norm", "layer_norm"),
    "feed_forward": FEED_FORWARDS,
    "activation": (*ACTIVATIONS, *GATED),
    "attention_implementation": IMPLEMENTATIONS,
    "kernel_init": ("xavier_uniform", "normal"),
    "dtype": ("float32", "bfloat16"),
    "remat": ("off", "nothing", "dots", "offload"),
    "products": tuple(NUMBERS),
}


@dataclass(frozen=True)
class StackConfig:
    """Settings of a stack of blocks; all sizes are explicit, none is derived from another."""

    layers: int = 6  # blocks
    width: int = 512  # D, of the residual stream
    heads: int = 8  # N
    kv_heads: int | None = None  # K; None: as many as heads. 1: multi-query (Shazeer 2019)
    head_dim: int = 64  # H
    feed_forward: str = "dense"  # see FEED_FORWARDS
    feed_forward_width: int = 2048  # units between the feed-forward's two products
    activation: str = "relu"  # of the feed-forward; swiglu, geglu and others are gated
    norm: str = "layer_norm"  # dyt: tanh in a norm's place (Zhu 2025)
    # post: Vaswani 2017; pre: Xiong 2020; deep: post with scaled residuals (Wang 2022)
    norm_place: str = "post"
    final_norm: bool = True  # a norm after the last block, with norm_place = "pre"
    residual: bool = True  # False: a sub-layer's input is not added to its output
    norm_epsilon: float = 1e-6  # added to the variance
    final_norm_epsilon: float = 0.0  # 0: norm_epsilon
    # RWKV halves the residual stream after so many layers, against overflow; its norms then see
    # their epsilon times 4, and nothing else changes. 0: never
    halved_every: int = 0
    norm_bias: bool = True  # norms add a bias
    dyt_alpha: float = 0.5  # its initial value
    attention_bias: bool = True  # the four products of attention add a bias
    qkv_bias: bool = True  # False: query, key and value have no bias, whatever attention_bias is
    key_bias: bool = True  # False: the key has no bias (Radford 2023)
    feed_forward_bias: bool = True  # the feed-forward's products add a bias
    scale_attention: bool = True  # scores times 1 / sqrt(head_dim)
    # parallel: attention and feed-forward read the same norm (PaLM), or each its own (GPT-NeoX);
    # conformer: half of a feed-forward before attention, of another after it, then a norm
    block: str = "serial"
    convolution_width: int = 0  # taps of a convolution module after attention; 0: no such module
    convolution_norm: str = "batch_norm"  # the norm in it (Gulati 2020, section 2.2)
    max_length: int = 256  # the longest sequence, in tokens
    positions: str = "sinusoidal"  # see ADDED and RELATIVE; sinusoidal_halves: sines, then cosines
    positions_every_layer: bool = False  # positions are added before each block and not once
    rope_base: float = 10_000.0  # the longest wavelength of RoPE is about 2 pi times it
    rope_dims: int | None = None  # dims of a head that are rotated; None: all
    rope_interleaved: bool = False  # pairs are neighbours, as in the paper; else from two halves
    rope_scaling: str = "none"  # none | linear | llama3 | yarn
    rope_factor: float = 1.0  # the context grows by it
    rope_original_length: int = 2048  # the context before scaling
    rope_low: float = 1.0  # turns in the original length: slower ones are scaled ...
    rope_high: float = 4.0  # ... faster ones kept; yarn: 32
    rope_attention_factor: float = 1.0  # multiplies cosine and sine
    relative_buckets: int = 32  # for positions = "t5"
    relative_max_distance: int = 128  # distances from here on share T5's last bias
    window: int = 0  # attends to keys nearer than this; 0: to all
    # Segment-level recurrence (Dai 2019, section 3.2): a row is read in segments of so many tokens,
    # of which each attends to itself and to `memory` tokens before it, through whose states no
    # gradient flows. 0: in one segment, to all
    segment: int = 0
    memory: int = 0  # tokens before a segment that it attends to, of the segments before it
    # kNN attention (Wu 2022): of the `recall_length` tokens before those, each query of one layer
    # also attends to the so many whose keys have the largest products with it. 0: no such layer
    recall: int = 0
    recall_length: int = 1024  # how many tokens before those can be recalled
    recall_layer: int = -1  # the layer that does so; -1 is the last
    dropout: float = 0.1  # on embeddings and on what each sub-layer adds
    attention_dropout: float = 0.0  # on attention weights
    feed_forward_dropout: float = 0.0  # on the feed-forward's hidden units
    # The rate of dropping a sub-layer for a whole example: 0 in the first layer, this in the last
    drop_path: float = 0.0
    # What each sub-layer adds is multiplied by a vector of weights, which begin at this
    # (Touvron 2021b, section 2.1). 0: no such weights
    layer_scale: float = 0.0
    mixer: MixerConfig = MixerConfig()  # what mixes the positions, if it is not attention
    experts: ExpertsConfig = ExpertsConfig()  # for feed_forward = "experts"
    # The kinds of the layers, repeated to the last: names of mixers, or "full" for attention to all
    # keys, each with "/" and a kind of feed-forward if that differs. Empty: all layers are equal
    layer_kinds: tuple[str, ...] = ()
    adapter_width: int = 0  # width of bottleneck adapters (Houlsby 2019); 0: no adapters
    # Which program computes attention. auto: by device and length; own: with the scores of all keys
    # in memory; chunked: block by block; splash: a TPU's kernel; cudnn: an NVIDIA GPU's; xla
    attention_implementation: str = "auto"
    kernel_init: str = "xavier_uniform"  # xavier_uniform | normal
    init_std: float = 0.02  # for kernel_init = "normal", and for embeddings
    depth_scaled_init: bool = False  # out and down by (2 * layers)^-1/2 (Radford 2019, 2.3)
    scan_layers: bool = False  # one compiled layer for all: faster compile, same numbers
    # What a block keeps for the backward pass, which computes the rest again, with equal numbers.
    # off: all that it needs; nothing: its input alone; dots: also the outputs of its products with
    # kernels; offload: the same, in the host's memory
    remat: str = "off"
    dtype: str = "float32"  # the compute type; parameters, norms, softmax and loss are float32
    # int8 and fp8: the products with kernels read their inputs in 8 bits, each row and column with
    # a scale of its own (by the library qwix); for chips that compute with these
    products: str = "float"

    def __post_init__(self):
        chosen(self, "model", self.choices())
        fractions(self, "model", *(name for name in FRACTIONS if hasattr(self, name)))
        sizes = "layers", "width", "heads", "head_dim", "feed_forward_width", "max_length"
        at_least(self, "model", 1, *sizes)
        free = (
            "adapter_width",
            "window",
            "segment",
            "memory",
            "recall",
            "recall_length",
            "halved_every",
            "layer_scale",
            "convolution_width",
        )
        at_least(self, "model", 0, *free)
        for kind in self.layer_kinds:
            mixer, slash, forward = kind.partition("/")
            known("model.layer_kinds: ", mixer, ("full", *KINDS))
            if slash:
                known(f"model.layer_kinds: {mixer}/", forward, FEED_FORWARDS)
        buckets, distance = self.relative_buckets, self.relative_max_distance
        if self.positions == "t5" and (buckets < 4 or distance <= buckets // 2):
            raise LabError(
                f"model.relative_buckets = {self.relative_buckets} must be at least 4, and less "
                f"than twice model.relative_max_distance = {self.relative_max_distance}"
            )
        if self.key_value_heads < 1 or self.heads % self.key_value_heads:
            raise LabError(
                f"model.heads = {self.heads} is not a multiple of model.kv_heads = {self.kv_heads}"
            )
        if self.memory and not self.segment:
            raise LabError("model.memory is kept between segments: set model.segment")
        if self.recall and not self.segment:
            raise LabError("model.recall finds tokens of earlier segments: set model.segment")
        if self.recall and not -self.layers <= self.recall_layer < self.layers:
            raise LabError(
                f"model.recall_layer = {self.recall_layer} is none of model.layers = {self.layers}"
            )
        if self.segment and (self.window or self.layer_kinds or self.mixer.kind != "attention"):
            raise LabError(
                "model.segment does not go with model.window, model.layer_kinds or other mixers "
                "than attention"
            )
        if self.block != "serial" and self.norm_place != "pre":
            raise LabError(f'model.block = "{self.block}" needs model.norm_place = "pre"')
        turning = self.turning_dims
        if self.positions == "rope" and (turning % 2 or not 2 <= turning <= self.head_dim):
            raise LabError(f"model.rope_dims = {turning} must be even and at most model.head_dim")
        if self.positions == "rope":
            self._check_rope()
        if self.positions_every_layer and self.positions not in ADDED:
            raise LabError(
                f'model.positions = "{self.positions}" is in every layer: unset '
                "model.positions_every_layer"
            )
        kinds = [self.layer(i).feed_forward for i in range(len(self.layer_kinds) or 1)]
        if "none" in kinds and self.block != "serial":
            raise LabError(f'model.block = "{self.block}" needs a feed-forward in every layer')
        if self.block == "conformer" and "shifted" in kinds:
            raise LabError(
                'model.feed_forward = "shifted" needs another model.block than conformer'
            )
        if self.convolution_width and self.block.startswith("parallel"):
            raise LabError(f'model.convolution_width does not go with model.block = "{self.block}"')
        if "experts" in kinds and self.feed_forward_dropout:
            raise LabError("model.feed_forward_dropout does not go with experts: set it to 0")
        if self.attention_dropout and self.attention_implementation not in ("auto", "own"):
            raise LabError(
                'model.attention_dropout needs model.attention_implementation = "auto" or "own"'
            )

    def _check_rope(self) -> None:
        """Refuses settings of RoPE that give frequencies which are infinite or not numbers."""
        for name, least in (
            ("base", 1), ("factor", 0), ("original_length", 0), ("low", 0), ("high", 0),
            ("attention_factor", 0),
        ):  # fmt: skip
            value = getattr(self, f"rope_{name}")
            if not least < value < math.inf:
                raise LabError(f"model.rope_{name} = {value} must be a number above {least}")
        if self.rope_scaling in ("llama3", "yarn") and self.rope_low >= self.rope_high:
            raise LabError(
                f"model.rope_low = {self.rope_low} must be below model.rope_high = {self.rope_high}"
            )

    def layer(self, i: int) -> "StackConfig":
        """The settings of layer i, with what `layer_kinds`, `halved_every` and `recall_layer`
        change in it."""
        if self.recall and i != self.recall_layer % self.layers:
            return replace(self, recall=0).layer(i)
        if self.halved_every:
            epsilon = self.norm_epsilon * 4.0 ** (i // self.halved_every)
            return replace(self, norm_epsilon=epsilon, halved_every=0).layer(i)
        if not self.layer_kinds:
            return self
        mixer, _, forward = self.layer_kinds[i % len(self.layer_kinds)].partition("/")
        kind = "attention" if mixer == "full" else mixer
        window = 0 if mixer == "full" else self.window
        return replace(
            self,
            mixer=replace(self.mixer, kind=kind),
            feed_forward=forward or self.feed_forward,
            window=window,
            layer_kinds=(),
        )

    def last(self, layers: int) -> "StackConfig":
        """The settings of the final norm after so many layers."""
        epsilon = self.final_norm_epsilon or self.norm_epsilon
        epsilon *= 4.0 ** (layers // self.halved_every) if self.halved_every else 1.0
        return replace(self, norm_epsilon=epsilon, halved_every=0)

    def each_layer(self) -> list["StackConfig"]:
        """The settings of each layer of the stack, from the first to the last."""
        return [self.layer(i) for i in range(self.layers)]

    def reads_both_ways(self, what: str) -> None:
        """Refuses mixers and segments, which go from left to right, for a stack that reads both
        ways."""
        if self.segment:
            raise LabError(
                f"model.segment is for decoders, and {what} reads both ways: set it to 0"
            )
        for i in range(len(self.layer_kinds) or 1):
            if (kind := self.layer(i).mixer.kind) != "attention":
                raise LabError(
                    f'"{kind}" reads from left to right, and {what} both ways: use "attention" in '
                    "model.mixer.kind and model.layer_kinds"
                )

    def choices(self) -> dict[str, tuple[str, ...]]:
        """The valid values of the settings that are names."""
        return CHOICES

    @property
    def key_value_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def turning_dims(self) -> int:
        """The number of a head's dims that RoPE rotates."""
        return self.head_dim if self.rope_dims is None else self.rope_dims

    @property
    def residual_scale(self) -> float:
        """DeepNorm's factor alpha for encoder- or decoder-only models (Wang 2022, figure 2(b))."""
        return (2 * self.layers) ** 0.25 if self.norm_place == "deep" else 1.0

    def init_gain(self, role: str) -> float:
        """The factor on a kernel's initial values, by its role in the block."""
        gain = 1.0
        if self.depth_scaled_init and role in ("out", "down"):
            gain *= (2 * self.layers) ** -0.5
        if role == "query" and not self.scale_attention:
            gain *= self.head_dim**-0.5  # scores begin as if they were scaled (Raffel 2020)
        if self.norm_place == "deep" and role in ("value", "out", "gate", "up", "down"):
            gain *= (8 * self.layers) ** -0.25  # DeepNorm's beta (Wang 2022, figure 2(b))
        return gain

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)
