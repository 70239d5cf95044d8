"""The Conformer (Gulati 2020): an encoder of audio whose states a CTC layer reads.

Beside CTC it may have a decoder of text that attends to the states (Watanabe 2017). The plain
transformer (`block = "serial"`, `convolution_width = 0`) and LSTMs in both directions
(`recurrent_width`) are settings of the same encoder."""

from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.errors import LabError, at_least
from transformer_lab.layers.basic import dense
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.embedding import check_length, enter
from transformer_lab.layers.recurrent import RecurrentConfig, RecurrentStack
from transformer_lab.models.encoder_decoder import Cache, EncoderDecoder, EncoderDecoderConfig
from transformer_lab.ops.visibility import Visible


@dataclass(frozen=True)
class ConformerConfig(EncoderDecoderConfig):
    """Settings of the encoder and, if wanted, of a decoder; the defaults are those of the smallest
    model (Gulati 2020, table 1)."""

    layers: int = 16
    width: int = 144
    heads: int = 4
    head_dim: int = 36
    feed_forward_width: int = 576
    activation: str = "silu"
    norm_place: str = "pre"
    block: str = "conformer"
    convolution_width: int = 32
    positions: str = "transformer_xl"
    max_length: int = 3000  # the longest recording in frames of 10 ms, and the longest text
    bins: int = 80  # bands of a frame's spectrum
    channels: int = 144  # of the two convolutions that shorten the audio
    recurrent_width: int = 0  # units of each direction of LSTM layers in the stack's place; 0: none
    decodes: bool = False  # with a decoder, of `decoder_layers` blocks

    def __post_init__(self):
        super().__post_init__()
        at_least(self, "model", 1, "bins", "channels")
        at_least(self, "model", 0, "recurrent_width")
        if not self.tie_source_target:
            raise LabError("model.tie_source_target = False is for two languages: unset it")

    @property
    def decoder(self) -> StackConfig:
        """The settings of the decoder, whose blocks are plain."""
        return replace(super().decoder, block="serial", convolution_width=0)

    @property
    def stride(self) -> int:
        """Frames for each of the encoder's states."""
        return 4

    @property
    def recurrence(self) -> RecurrentConfig:
        """The settings of the LSTM layers."""
        return RecurrentConfig(
            layers=self.layers,
            width=self.recurrent_width,
            bidirectional=True,
            dropout=self.dropout,
            dtype=self.dtype,
        )


class Conformer(EncoderDecoder):
    """Maps the frames of recordings to logits for CTC, and given a target to its logits.

    Two convolutions of 3 x 3 and a step of 2 in time and in frequency, each followed by relu, leave
    a state for every four frames, which begins as a linear map of all bands and channels. A call
    with a dropout key uses dropout, and the batch's own moments in batch norms.
    """

    config: ConformerConfig

    def setup(self):
        super().setup()
        cfg = self.config
        shape = {"kernel_size": (3, 3), "strides": 2, "padding": 1, "dtype": cfg.compute_dtype}
        self.convolution_1 = nn.Conv(cfg.channels, **shape)
        self.convolution_2 = nn.Conv(cfg.channels, **shape)
        self.entrance = dense(cfg, cfg.width, True)
        if cfg.recurrent_width:
            self.recurrent = RecurrentStack(cfg.recurrence, cfg.width)
        self.ctc = dense(cfg, cfg.vocab_size, True)

    def __call__(
        self,
        features: Float[Array, "b f m"],
        mask: Bool[Array, "b f"],
        dropout_key: Key[Array, ""] | None = None,
        target: Int[Array, "b t"] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> dict[str, Any]:
        """`ctc` [b s v] with the mask of real states `real` [b s], one for every four frames.

        With a target, whose first token is the start token, also `attention`: the decoder's logits
        [b t v], or given labels their scores. The features are those of `ops.spectrograms.log_mel`,
        and the mask is True at the frames of a recording.
        """
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        states, real = self.encode(features, mask, keys[0])
        out = {"ctc": self.ctc(states).astype(jnp.float32), "real": real}
        if self.config.decodes and (target is not None or self.is_initializing()):
            target = jnp.zeros((len(features), 1), jnp.int32) if target is None else target
            out["attention"] = self.logits(self.decode(target, states, real, keys[1]), labels)
        return out

    def encode(
        self,
        features: Float[Array, "b f m"],
        mask: Bool[Array, "b f"],
        dropout_key: Key[Array, ""] | None = None,
    ) -> tuple[Float[Array, "b s d"], Bool[Array, "b s"]]:
        """The states of the recordings, one for every four frames, and which of them are real."""
        cfg = self.config
        if self.is_initializing():  # shapes are the config's, whatever the example
            features, mask = jnp.zeros((len(features), 4, cfg.bins)), jnp.ones((len(mask), 4), bool)
        if features.shape[-1] != cfg.bins:
            raise LabError(
                f"frames have {features.shape[-1]} bands, the model reads model.bins = {cfg.bins}"
            )
        check_length(cfg, features.shape[1])
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        x = features.astype(cfg.compute_dtype)[..., None]
        for convolution in (self.convolution_1, self.convolution_2):
            x = nn.relu(convolution(jnp.where(mask[..., None, None], x, 0)))
            mask = mask[:, ::2]  # a frame of the output is real if its middle one is
        x = self.entrance(x.reshape(*x.shape[:2], -1))
        vectors = self.source_positions(jnp.arange(x.shape[1])[None])
        x = enter(cfg, x, vectors, None, keys[0])[0]
        if cfg.recurrent_width:
            return self.recurrent(x, mask, dropout_key=keys[1])[0], mask
        return self.encoder(x, Visible(keys=mask), dropout_key=keys[1]), mask

    def init_cache(
        self, features: Float[Array, "b f m"], mask: Bool[Array, "b f"], length: int
    ) -> Cache:
        """Encodes the recordings; returns a cache with room for `length` target positions."""
        check_length(self.config, length)
        states, real = self.encode(features, mask)
        return self._cache(states, real[:, None, None, :], length)


def example_inputs() -> tuple[Array, ...]:
    """The arguments of `init`, which takes the bands from the config."""
    return jnp.zeros((1, 4, 1)), jnp.ones((1, 4), bool)


CONFIG = ConformerConfig
build = Conformer
RULES = (
    (r"convolution_\d/kernel$", (None, None, None, "fsdp")),
    (r"entrance/kernel$", (None, "fsdp")),
    (r"ctc/kernel$", ("fsdp",)),
)
STACKS = {}  # which of its stacks there are depends on the config: all is traced, and counted
