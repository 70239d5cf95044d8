"""Sizes of encoder-decoders."""

from dataclasses import replace

from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.models.presets.row import Preset

_BASE = EncoderDecoderConfig(
    layers=6, width=512, heads=8, head_dim=64, feed_forward_width=2048, vocab_size=37_000
)
_BIG = replace(_BASE, width=1024, heads=16, feed_forward_width=4096, dropout=0.3)
_VASWANI = "Vaswani 2017, table 3"
_FRENCH = "32k word pieces; the paper states the count for en-de alone"

ENCODER_DECODERS = {
    "transformer_base": Preset("encoder_decoder", _BASE, 65e6, _VASWANI),
    "transformer_big": Preset("encoder_decoder", _BIG, 213e6, _VASWANI),
    "transformer_base_en_fr": Preset(
        "encoder_decoder", replace(_BASE, vocab_size=32_000), None, _VASWANI, _FRENCH
    ),
    "transformer_big_en_fr": Preset(
        "encoder_decoder", replace(_BIG, vocab_size=32_000, dropout=0.1), None, _VASWANI, _FRENCH
    ),
}
