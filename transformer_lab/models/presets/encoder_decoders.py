"""Published sizes of encoder-decoders."""

from dataclasses import replace

from transformer_lab.layers.block_config import ExpertsConfig
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.models.presets.row import Preset, presets

_BASE = EncoderDecoderConfig(
    layers=6, width=512, heads=8, head_dim=64, feed_forward_width=2048, vocab_size=37_000
)
_BIG = replace(_BASE, width=1024, heads=16, feed_forward_width=4096, dropout=0.3)
_FRENCH = "32k word pieces; the paper states the count for en-de alone"

T5 = EncoderDecoderConfig(
    vocab_size=32_128,
    max_length=512,
    positions="t5",
    norm="rms_norm",
    norm_place="pre",
    norm_epsilon=1e-6,
    norm_bias=False,
    attention_bias=False,
    feed_forward_bias=False,
    scale_attention=False,
    embedding_scale=False,
    scale_output=True,
    init_std=1.0,
    attention_dropout=0.1,
    feed_forward_dropout=0.1,
)
# Untied, gated, and no dropout while pre-training.
T5_1_1 = replace(
    T5,
    tie_head=False,
    scale_output=False,
    activation="geglu_tanh",
    dropout=0.0,
    attention_dropout=0.0,
    feed_forward_dropout=0.0,
)
BART = EncoderDecoderConfig(
    vocab_size=50_265,
    max_length=1024,
    positions="learned",
    embedding_scale=False,
    embedding_norm=True,
    activation="gelu",
    norm_epsilon=1e-5,
    kernel_init="normal",
)
# Every second layer of both stacks has experts, of which one works for a token.
_SWITCH = replace(
    T5,
    activation="geglu_tanh",
    layer_kinds=("attention/dense", "attention/experts"),
    feed_forward_dropout=0.0,
    experts=ExpertsConfig(128, top_k=1, renormalize=False, capacity_factor=1.25, jitter=0.01),
)
_GSHARD = EncoderDecoderConfig(
    vocab_size=64_000,
    max_length=1024,
    norm_place="pre",
    attention_bias=False,
    feed_forward_bias=False,
    layer_kinds=("attention/dense", "attention/experts"),
    experts=ExpertsConfig(2048, top_k=2, capacity_factor=2.0, z_loss=0.0),
)
_SIZES = ("layers", "width", "heads", "head_dim", "feed_forward_width")  # of both stacks


def _family(
    base: EncoderDecoderConfig, source: str, rows: dict[str, tuple], **common: str
) -> dict[str, Preset]:
    return presets("encoder_decoder", base, _SIZES, source, rows, **common)


def _vaswani(base: EncoderDecoderConfig, *more: float | str | None) -> Preset:
    return Preset("encoder_decoder", base, more[0], "Vaswani 2017, table 3", *more[1:])


# fmt: off
ENCODER_DECODERS = {
    "transformer_base": _vaswani(_BASE, 65e6),
    "transformer_big": _vaswani(_BIG, 213e6),
    "transformer_base_en_fr": _vaswani(replace(_BASE, vocab_size=32_000), None, _FRENCH),
    "transformer_big_en_fr": _vaswani(
        replace(_BIG, vocab_size=32_000, dropout=0.1), None, _FRENCH
    ),
    **_family(T5, "Raffel 2020, section 3.7", {
        "t5_small": (6, 512, 8, 64, 2048, 60e6),
        "t5_base": (12, 768, 12, 64, 3072, 220e6),
        "t5_large": (24, 1024, 16, 64, 4096, 770e6),
        "t5_3b": (24, 1024, 32, 128, 16_384, 2.8e9),
        "t5_11b": (24, 1024, 128, 128, 65_536, 11e9),
    }),
    **_family(T5_1_1, "T5 1.1, the authors' release notes", {
        "t5_1.1_small": (8, 512, 6, 64, 1024, 77e6),
        "t5_1.1_base": (12, 768, 12, 64, 2048, 250e6),
        "t5_1.1_large": (24, 1024, 16, 64, 2816, 800e6),
        "t5_1.1_xl": (24, 2048, 32, 64, 5120, 3e9),
        "t5_1.1_xxl": (24, 4096, 64, 64, 10_240, 11e9),
    }),
    **_family(replace(T5_1_1, vocab_size=250_112), "Xue 2021, section 3.2", {
        "mt5_small": (8, 512, 6, 64, 1024, 300e6),
        "mt5_base": (12, 768, 12, 64, 2048, 580e6),
        "mt5_large": (24, 1024, 16, 64, 2816, 1.2e9),
        "mt5_xl": (24, 2048, 32, 64, 5120, 3.7e9),
        "mt5_xxl": (24, 4096, 64, 64, 10_240, 13e9),
    }),
    **_family(_SWITCH, "Fedus 2021, table 9", {
        "switch_base": (12, 768, 12, 64, 2048, 7e9),
        "switch_large": (24, 1024, 16, 64, 2816, 26e9),
    }),
    **_family(_GSHARD, "Lepikhin 2020, table 1; width and hidden units from memory", {
        "gshard_600b": (18, 1024, 16, 128, 8192, 600e9),
    }, note="36 layers are those of both stacks; the vocabulary is ours, the paper is silent"),
    **_family(BART, "Lewis 2020, the authors' release notes", {
        "bart_base": (6, 768, 12, 64, 3072, 140e6),
        "bart_large": (12, 1024, 16, 64, 4096, 400e6),
    }),
}
# fmt: on
