"""Published sizes of decoder-only language models: GPT to LLaMA, experts, state spaces, RWKV."""

from dataclasses import replace
from typing import Any

from transformer_lab.layers.block_config import ExpertsConfig, MixerConfig
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.models.presets.row import Preset, presets

_GPT2 = DecoderConfig(
    vocab_size=50_257,
    max_length=1024,
    positions="learned",
    attention_bias=True,
    feed_forward_bias=True,
    norm_bias=True,
    tie_head=True,
    dropout=0.1,
)
_GPT1 = replace(
    _GPT2, vocab_size=40_478, max_length=512, norm_place="post", depth_scaled_init=False
)
_GPT3 = replace(_GPT2, max_length=2048, dropout=0.0)
_OPT = replace(_GPT2, vocab_size=50_272, max_length=2048, activation="relu")
_OPT_350M = replace(_OPT, norm_place="post", embedding_width=512)
_NO_BIAS = replace(_GPT3, attention_bias=False, feed_forward_bias=False, norm_bias=False)
_GALACTICA = replace(_NO_BIAS, vocab_size=50_000, activation="gelu", dropout=0.1)
_PALM = replace(
    _NO_BIAS, vocab_size=256_000, positions="rope", activation="swiglu", block="parallel"
)
_LAMDA = replace(_NO_BIAS, vocab_size=32_000, positions="t5", activation="geglu")
_LLAMA = replace(
    _NO_BIAS,
    vocab_size=32_000,
    positions="rope",
    activation="swiglu",
    norm="rms_norm",
    norm_epsilon=1e-6,
    tie_head=False,
)
_GOPHER = replace(_GPT3, vocab_size=32_000, positions="transformer_xl", norm="rms_norm")
_BLOOM = replace(_GPT3, vocab_size=250_880, positions="alibi", embedding_norm=True)
_GLM = replace(
    _GPT3,
    vocab_size=150_528,
    positions="rope",
    activation="geglu",
    norm_place="deep",
    mask="prefix",
    dropout=0.1,
)
_MIXTRAL = replace(
    _LLAMA,
    max_length=32_768,
    rope_base=1e6,
    norm_epsilon=1e-5,
    feed_forward="experts",
    experts=ExpertsConfig(count=8, top_k=2),
)
# The first layer is dense; the others' experts are narrow, and two work for all tokens.
_DEEPSEEK_MOE = replace(
    _LLAMA,
    vocab_size=102_400,
    max_length=4096,
    layer_kinds=("attention/dense", *("attention/experts",) * 27),
    experts=ExpertsConfig(64, 1408, top_k=6, renormalize=False, shared=2, balance_loss=0.001),
)
# Gated in the dense layers alone: so the counts of the paper, 1.2T and 96.6B, come out.
_GLAM = replace(
    _LAMDA,
    vocab_size=256_000,
    max_length=1024,
    norm="rms_norm",
    layer_kinds=("attention/dense", "attention/experts"),
    experts=ExpertsConfig(64, activation="gelu", top_k=2, capacity_factor=2.0),
)
_MAMBA = replace(
    _NO_BIAS,
    vocab_size=50_280,
    norm="rms_norm",
    positions="none",
    feed_forward="none",
)
_RWKV = replace(
    _NO_BIAS,
    vocab_size=50_277,
    max_length=1024,
    norm_bias=True,
    positions="none",
    feed_forward="shifted",
    embedding_norm=True,
    tie_head=False,
)
_CPU = replace(_GPT2, vocab_size=4096, max_length=512)

_SIZES = ("layers", "width", "heads", "kv_heads", "head_dim", "feed_forward_width")
_SPARSE = "every second layer was sparse; all are dense here"
_GROWS = "the batch grew to this one"
# Adafactor at a constant rate, then by the inverse square root of the step; no warm-up.
_ADAFACTOR = {
    "name": "adafactor", "schedule": "flat_inverse_sqrt", "warmup_steps": 10_000,
    "weight_decay": 0.0,
}  # fmt: skip
_MAMBA_RUNS = "Gu 2023 (arXiv 2312.00752), appendix E.2: GPT-3's batches, 300e9 tokens"
_SURVEY = "Zhao 2023 (arXiv 2303.18223), table 8"


def _family(
    base: DecoderConfig, source: str, rows: dict[str, tuple], **common: Any
) -> dict[str, Preset]:
    """Rows: the six sizes, published parameters, learning rate, tokens a batch, perhaps a note."""
    more = "learning_rate", "batch_tokens", "note"
    rows = {n: (*r[:8], None if r[8] is None else int(r[8]), *r[9:]) for n, r in rows.items()}
    return presets("decoder", base, _SIZES, source, rows, more, **common)


def _states(
    base: DecoderConfig, mixer: MixerConfig, source: str, rows: dict[str, tuple], **common: Any
) -> dict[str, Preset]:
    """Rows: layers, width, published parameters; all else follows from the width D: Mamba has 2 D
    channels and steps of rank D / 16, RWKV D channels and 4 D hidden units."""
    found, expand = {}, 2 if mixer.kind == "mamba" else 1
    for name, (layers, width, published) in rows.items():
        inner = replace(mixer, inner_width=expand * width, step_rank=width // 16)
        sizes = {"kv_heads": width // 64, "heads": width // 64, "feed_forward_width": 4 * width}
        config = replace(base, layers=layers, width=width, mixer=inner, **sizes)
        found[name] = Preset("decoder", config, published, source, **common)
    return found


# fmt: off
DECODERS = {
    **_family(_GPT1, "Radford 2018, section 4.1; count: Radford 2019, table 2", {
        "gpt1": (12, 768, 12, 12, 64, 3072, 117e6, 2.5e-4, 64 * 512,
                 "the paper states no count; 110 M is Devlin 2019's, of a BERT of the same size"),
    }, trained_tokens=100 * 0.8e9, optimizer={"b2": 0.999, "weight_decay": 0.01, "end_factor": 0.0},
        training_source="Radford 2018, section 4.1: 100 epochs, here of BooksCorpus's 0.8e9 words"),
    **_family(_GPT2, "Radford 2019, table 2; counts of the released weights", {
        "gpt2_small": (12, 768, 12, 12, 64, 3072, 124_439_808, None, 512 * 1024, "table: 117 M"),
        "gpt2_medium": (24, 1024, 16, 16, 64, 4096, 354_823_168, None, 512 * 1024, "table: 345 M"),
        "gpt2_large": (36, 1280, 20, 20, 64, 5120, 774_030_080, None, 512 * 1024, "table: 762 M"),
        "gpt2_xl": (48, 1600, 25, 25, 64, 6400, 1_557_611_200, None, 512 * 1024, "table: 1,542 M"),
    }),
    **_family(_GPT3, "Brown 2020, table 2.1", {
        "gpt3_125m": (12, 768, 12, 12, 64, 3072, 125e6, 6.0e-4, 0.5e6),
        "gpt3_350m": (24, 1024, 16, 16, 64, 4096, 350e6, 3.0e-4, 0.5e6),
        "gpt3_760m": (24, 1536, 16, 16, 96, 6144, 760e6, 2.5e-4, 0.5e6),
        "gpt3_1.3b": (24, 2048, 16, 16, 128, 8192, 1.3e9, 2.0e-4, 1e6,
                      "the table's 24 heads of 128 do not make 2048; " + _SPARSE),
        "gpt3_2.7b": (32, 2560, 32, 32, 80, 10_240, 2.7e9, 1.6e-4, 1e6),
        "gpt3_6.7b": (32, 4096, 32, 32, 128, 16_384, 6.7e9, 1.2e-4, 2e6),
        "gpt3_13b": (40, 5120, 40, 40, 128, 20_480, 13e9, 1.0e-4, 2e6,
                     "the table's width 5140 is not 40 heads of 128; " + _SPARSE),
        "gpt3_175b": (96, 12_288, 96, 96, 128, 49_152, 175e9, 0.6e-4, 3.2e6),
    }, trained_tokens=300e9, note=_SPARSE),
    **_family(replace(_GPT3, vocab_size=40_000, max_length=1024), "Zeng 2021, table 1", {
        "pangu_alpha_200b": (64, 16_384, 128, 128, 128, 65_536, 207e9, 2e-5, None,
                             "the query layer is one of the 64; on top of them: 210.1 B"),
    }, training_source=_SURVEY),
    **_family(_OPT_350M, "Zhang 2022, table 1; count of the released weights", {
        "opt_350m": (24, 1024, 16, 16, 64, 4096, 331.2e6, 3.0e-4, 0.5e6,
                     "released with embeddings of 512 and the norm behind; with 1024: 356 M"),
    }, trained_tokens=300e9),
    **_family(_OPT, "Zhang 2022, table 1", {
        "opt_125m": (12, 768, 12, 12, 64, 3072, 125e6, 6.0e-4, 0.5e6),
        "opt_1.3b": (24, 2048, 32, 32, 64, 8192, 1.3e9, 2.0e-4, 1e6),
        "opt_2.7b": (32, 2560, 32, 32, 80, 10_240, 2.7e9, 1.6e-4, 1e6),
        "opt_6.7b": (32, 4096, 32, 32, 128, 16_384, 6.7e9, 1.2e-4, 2e6),
        "opt_13b": (40, 5120, 40, 40, 128, 20_480, 13e9, 1.0e-4, 4e6),
        "opt_30b": (48, 7168, 56, 56, 128, 28_672, 30e9, 1.0e-4, 4e6),
        "opt_66b": (64, 9216, 72, 72, 128, 36_864, 66e9, 0.8e-4, 2e6),
        "opt_175b": (96, 12_288, 96, 96, 128, 49_152, 175e9, 1.2e-4, 2e6),
    }, trained_tokens=300e9),
    **_family(_PALM, "Chowdhery 2022, table 1", {
        "palm_8b": (32, 4096, 16, 1, 256, 16_384, 8.63e9, 1e-2, 512 * 2048),
        "palm_62b": (64, 8192, 32, 1, 256, 32_768, 62.50e9, 1e-2, 1024 * 2048),
        "palm_540b": (118, 18_432, 48, 1, 256, 73_728, 540.35e9, 1e-2, 2048 * 2048),
    }, trained_tokens=780e9, note="Adafactor's rate, relative to the parameters; " + _GROWS,
        optimizer=_ADAFACTOR, training_source="Chowdhery 2022, section 5"),
    **_family(_GPT3, "Smith 2022, section 3", {
        "mt_nlg_530b": (105, 20_480, 128, 128, 160, 81_920, 530e9, 5.0e-5, 1920 * 2048, _GROWS),
    }, trained_tokens=270e9, training_source=_SURVEY),
    **_family(_GOPHER, "Rae 2021, table 1", {
        "gopher_44m": (8, 512, 16, 16, 32, 2048, 44e6, 6e-4, 0.25e6),
        "gopher_117m": (12, 768, 12, 12, 64, 3072, 117e6, 6e-4, 0.25e6),
        "gopher_417m": (12, 1536, 12, 12, 128, 6144, 417e6, 2e-4, 0.25e6),
        "gopher_1.4b": (24, 2048, 16, 16, 128, 8192, 1.4e9, 2e-4, 0.25e6),
        "gopher_7.1b": (32, 4096, 32, 32, 128, 16_384, 7.1e9, 1.2e-4, 2e6),
        "gopher_280b": (80, 16_384, 128, 128, 128, 65_536, 280e9, 4e-5, 6e6, _GROWS),
    }, trained_tokens=300e9, note="only a tied head fits the stated counts"),
    **_family(_GOPHER, "Hoffmann 2022, table 4", {
        "chinchilla_70b": (80, 8192, 64, 64, 128, 32_768, 70e9, 1e-4, 3e6, _GROWS),
    }, trained_tokens=1.4e12),
    **_family(_BLOOM, "BigScience 2022, table 3", {
        "bloom_560m": (24, 1024, 16, 16, 64, 4096, 559e6, 3.0e-4, 256 * 2048),
        "bloom_1.1b": (24, 1536, 16, 16, 96, 6144, 1065e6, 2.5e-4, 256 * 2048),
        "bloom_1.7b": (24, 2048, 16, 16, 128, 8192, 1722e6, 2.0e-4, 512 * 2048),
        "bloom_3b": (30, 2560, 32, 32, 80, 10_240, 3003e6, 1.6e-4, 512 * 2048),
        "bloom_7.1b": (30, 4096, 32, 32, 128, 16_384, 7069e6, 1.2e-4, 512 * 2048),
    }, trained_tokens=341e9),
    **_family(_BLOOM, "BigScience 2022, table 3", {
        "bloom_176b": (70, 14_336, 112, 112, 128, 57_344, 176_247e6, 6.0e-5, 2048 * 2048),
    }, trained_tokens=366e9),
    **_family(_GALACTICA, "Taylor 2022, table 5", {
        "galactica_125m": (12, 768, 12, 12, 64, 3072, 125e6, 6e-4, 0.5e6),
        "galactica_1.3b": (24, 2048, 32, 32, 64, 8192, 1.3e9, 2e-4, 1e6),
        "galactica_6.7b": (32, 4096, 32, 32, 128, 16_384, 6.7e9, 1.2e-4, 2e6),
        "galactica_30b": (48, 7168, 56, 56, 128, 28_672, 30e9, 1e-4, 2e6),
        "galactica_120b": (96, 10_240, 80, 80, 128, 40_960, 120e9, 0.7e-5, 2e6),
    }, trained_tokens=450e9),
    **_family(replace(_LAMDA, max_length=1024), "Thoppilan 2022, section 3", {
        "lamda_137b": (64, 8192, 128, 128, 128, 65_536, 137e9, None, 256e3,
                       "the stated count leaves embeddings out; the context, not stated, is ours"),
    }),
    **_family(replace(_GPT3, vocab_size=256_000), "Lieber 2021, table 1", {
        "jurassic1_large": (32, 4096, 32, 32, 128, 16_384, 7.5e9, 1.2e-4, 2e6),
        "jurassic1_jumbo": (76, 13_824, 96, 96, 144, 55_296, 178e9, 0.6e-4, 3.2e6),
    }, trained_tokens=300e9),
    **_family(_LLAMA, "Touvron 2023, table 2", {
        "llama_7b": (32, 4096, 32, 32, 128, 11_008, 6.7e9, 3.0e-4, 4e6),
        "llama_13b": (40, 5120, 40, 40, 128, 13_824, 13.0e9, 3.0e-4, 4e6),
    }, trained_tokens=1.0e12),
    **_family(_LLAMA, "Touvron 2023, table 2", {
        "llama_33b": (60, 6656, 52, 52, 128, 17_920, 32.5e9, 1.5e-4, 4e6),
        "llama_65b": (80, 8192, 64, 64, 128, 22_016, 65.2e9, 1.5e-4, 4e6),
    }, trained_tokens=1.4e12),
    **_family(_GLM, "Zeng 2022, section 2", {
        "glm_130b": (70, 12_288, 96, 96, 128, 32_768, 130e9, 8e-5, 4224 * 2048, _GROWS),
    }, trained_tokens=400e9, training_source=_SURVEY + ": 8.25 M tokens; dropout 0.1"),
    **_family(_MIXTRAL, "Jiang 2024, table 1; count of the released weights", {
        "mixtral_8x7b": (32, 4096, 32, 8, 128, 14_336, 46_702_792_704, None, None,
                         "the paper: 47B, of which 13B work for a token"),
    }),
    **_family(_DEEPSEEK_MOE, "Dai 2024, section 5.1.2", {
        "deepseek_moe_16b": (28, 2048, 16, 16, 128, 10_944, 16.4e9, 4.2e-4, 4608 * 4096,
                             "of which 2.8B work for a token"),
    }, trained_tokens=2e12),
    **_family(_GLAM, "Du 2022, table 4, from memory", {
        "glam_64b_64e": (64, 8192, 128, 128, 128, 32_768, 1.2e12, None, None,
                         "of which 96.6B work for a token; its training was not looked up"),
    }),
    **_states(_MAMBA, MixerConfig("mamba"), "Gu 2023, section 4.2.2, from memory", {
        "mamba_130m": (24, 768, 130e6),
        "mamba_370m": (48, 1024, 370e6),
        "mamba_790m": (48, 1536, 790e6),
    }, batch_tokens=524_288, trained_tokens=300e9, training_source=_MAMBA_RUNS),
    **_states(_MAMBA, MixerConfig("mamba"), "Gu 2023, section 4.2.2, from memory", {
        "mamba_1.4b": (48, 2048, 1.4e9),
        "mamba_2.8b": (64, 2560, 2.8e9),
    }, batch_tokens=1_048_576, trained_tokens=300e9, training_source=_MAMBA_RUNS),
    **_states(_RWKV, MixerConfig("rwkv"), "Peng 2023, table 2", {
        "rwkv4_169m": (12, 768, 1.693e8),
        "rwkv4_430m": (24, 1024, 4.304e8),
        "rwkv4_1.5b": (24, 2048, 1.515e9),
        "rwkv4_3b": (32, 2560, 2.985e9),
        "rwkv4_7b": (32, 4096, 7.393e9),
        "rwkv4_14b": (40, 5120, 1.415e10),
    }, trained_tokens=330e9, training_source="Peng 2023 (arXiv 2305.13048), section 5"),
    **_family(_CPU, "this project, for a CPU", {
        "cpu_2m": (3, 192, 6, 6, 32, 768, None, None, None),
        "cpu_12m": (6, 384, 6, 6, 64, 1536, None, None, None),
    }),
    **_family(replace(_CPU, vocab_size=8192), "this project, for a CPU", {
        "cpu_30m": (8, 512, 8, 8, 64, 2048, None, None, None),
    }),
}
# fmt: on
