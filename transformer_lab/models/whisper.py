"""Whisper (Radford 2023): an encoder of audio and a decoder of text, over the usual two stacks."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from transformer_lab.errors import LabError, at_least
from transformer_lab.layers import costs
from transformer_lab.layers.config import CHOICES
from transformer_lab.layers.embedding import check_length
from transformer_lab.models.encoder_decoder import Cache, EncoderDecoder, EncoderDecoderConfig
from transformer_lab.ops.activations import ACTIVATIONS
from transformer_lab.ops.dropout import dropout
from transformer_lab.ops.losses import TokenScores

REACH = 3  # the convolutions' width in frames


@dataclass(frozen=True)
class WhisperConfig(EncoderDecoderConfig):
    """Settings of both stacks and of the audio; the defaults are those of the smallest model.

    Windows of audio have a fixed number of frames, padded with silence, and are read as a whole.
    """

    layers: int = 4
    width: int = 384
    heads: int = 6
    feed_forward_width: int = 1536
    activation: str = "gelu"
    norm_place: str = "pre"
    norm_epsilon: float = 1e-5
    key_bias: bool = False
    max_length: int = 448  # tokens of text
    positions: str = "learned"  # the text's positions
    dropout: float = 0.0
    embedding_scale: bool = False
    bins: int = 80  # bands of a frame's spectrum
    frames: int = 3000  # frames of a window, 100 a second; the encoder has a state for every two

    def __post_init__(self):
        super().__post_init__()
        at_least(self, "model", 1, "bins", "frames")
        if self.frames % 2 or self.width % 2:
            raise LabError(
                f"model.frames = {self.frames} and model.width = {self.width} must be even"
            )
        if not self.tie_source_target:
            raise LabError("model.tie_source_target = False is for two languages: unset it")

    def choices(self) -> dict[str, tuple[str, ...]]:
        return CHOICES | {"positions": ("learned",), "activation": tuple(ACTIVATIONS)}

    @property
    def states(self) -> int:
        """The number of the encoder's states: half the frames."""
        return self.frames // 2


class Whisper(EncoderDecoder):
    """Maps audio features and the target to logits: two convolutions before encoder and decoder.

    The second convolution has stride 2. The encoder's position vectors are parameters that start as
    sinusoids and are not trained. A call with a dropout key uses dropout.
    """

    config: WhisperConfig

    def setup(self):
        super().setup()
        cfg = self.config
        shape = {"kernel_size": (REACH,), "padding": 1, "dtype": cfg.compute_dtype}
        self.convolution_1 = nn.Conv(cfg.width, **shape)
        self.convolution_2 = nn.Conv(cfg.width, strides=(2,), **shape)
        self.frame_positions = self.param("frame_positions", _sinusoids, (cfg.states, cfg.width))

    def __call__(
        self,
        features: Float[Array, "b f m"],
        target: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t v"] | TokenScores:
        """Logits after each target token; given labels, the labels' scores instead. The features
        are those of `ops.spectrograms.log_mel`."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        memory = self.encode(features, keys[0])
        return self.logits(self.decode(target, memory, None, keys[1]), labels)

    def encode(
        self, features: Float[Array, "b f m"], dropout_key: Key[Array, ""] | None = None
    ) -> Float[Array, "b s d"]:
        """The encoder's states of the windows, one for every two frames."""
        cfg = self.config
        if self.is_initializing():  # shapes are the config's, whatever the example
            features = jnp.zeros((len(features), cfg.frames, cfg.bins))
        if features.shape[1:] != (cfg.frames, cfg.bins):
            raise LabError(
                f"a window has {features.shape[1]} frames of {features.shape[2]} bands, the model "
                f"reads model.frames = {cfg.frames} of model.bins = {cfg.bins}"
            )
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        gelu = ACTIVATIONS["gelu"]  # whatever the stacks have
        x = gelu(self.convolution_1(features.astype(cfg.compute_dtype)))
        x = gelu(self.convolution_2(x))
        x = x + jax.lax.stop_gradient(self.frame_positions).astype(x.dtype)
        return self.encoder(dropout(x, cfg.dropout, keys[0]), dropout_key=keys[1])

    def init_cache(self, features: Float[Array, "b f m"], length: int) -> Cache:
        """Encodes the windows; returns a cache with room for `length` target positions."""
        check_length(self.config, length)
        return self._cache(self.encode(features), None, length)


def _sinusoids(key: Any, shape: tuple[int, int]) -> Float[Array, "s d"]:
    """Sines, then cosines, of wavelengths from 2 pi to 10,000 times that, both ends included."""
    half = shape[1] // 2
    rates = np.exp(-np.log(10_000) * np.arange(half) / max(half - 1, 1))
    angles = np.arange(shape[0])[:, None] * rates
    return jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], axis=1), jnp.float32)


def training_flops(config: WhisperConfig, length: int | None = None) -> int:
    """FLOPs a token of text, forward and backward, for texts of `length` tokens and a window each.

    6 for each parameter that multiplies a position, and 12 for each query, key and entry of a head
    that attention compares (see `models.decoder`).
    """
    tokens, decoder = length or config.max_length, config.decoder
    pair = lambda stack: 12 * stack.layers * stack.heads * stack.head_dim  # noqa: E731
    matrices = lambda stack: 6 * sum(map(costs.active_parameters, stack.each_layer()))  # noqa: E731
    convolutions = 6 * REACH * config.width * (2 * config.bins + config.width)
    own = decoder.width * decoder.heads * decoder.head_dim  # the query's kernel, and the output's
    memory = decoder.width * decoder.key_value_heads * decoder.head_dim  # a key's, a value's kernel
    a_state = convolutions + matrices(config) + pair(config) * config.states
    a_state += 6 * decoder.layers * 2 * memory
    a_token = matrices(decoder) + 6 * decoder.layers * 2 * own
    a_token += pair(decoder) * (tokens + config.states) + 6 * config.vocab_size * config.width
    return a_token + a_state * config.states // tokens


def example_inputs() -> tuple[Array, ...]:
    """The arguments of `init`, which takes the window's size from the config."""
    return jnp.zeros((1, 1, 1)), jnp.zeros((1, 2), jnp.int32)


VIEW = "whisper"  # the reader of its attention, in viewing/capture.py
CONFIG = WhisperConfig
build = Whisper
STACKS = {"encoder": "layers", "decoder": "decoder_layers"}
RULES = ((r"convolution_\d/kernel$|frame_positions$", ()),)
