"""Published sizes: the code gives each the parameters that its paper states."""

import functools
from dataclasses import replace

import jax
import pytest

from transformer_lab.layers.costs import idle_parameters
from transformer_lab.models import costs, parameter_shapes
from transformer_lab.models.presets import DECODERS, ENCODER_DECODERS, ENCODERS, TABLES, VISION
from transformer_lab.sweeps.experiment import load_module
from transformer_lab.training.config import resolve
from transformer_lab.training.optimizer import schedule

EXACT = {  # of the released weights
    "gpt2_small": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "bloom_560m": 559_214_592,
    "bloom_7.1b": 7_069_016_064,
    "bloom_176b": 176_247_271_424,
    "llama_7b": 6_738_415_616,
    "llama_13b": 13_015_864_320,
    "llama_65b": 65_285_660_672,
    "bert_base": 109_482_240,
    "bert_large": 335_141_888,
    "bert_tiny": 4_385_920,
    "roberta_large": 355_359_744 - 2 * 1024,  # theirs has rows for padding
    "distilbert": 66_362_880,
    "vit_b16": 86_567_656,
    "vit_b32": 88_224_232,
    "vit_l16": 304_326_632,
    "vit_l32": 306_535_400,
    "vit_h14": 632_045_800,
    "dinov2_s14": 22_056_576 - 384,  # theirs has a vector for what is masked
    "deit_ti16": 5_717_416,
    "deit_s16_distilled": 22_436_432,
    "deit_b16_distilled": 87_338_192,
    "swin_t": 28_288_354,
    "swin_s": 49_606_258,
    "swin_b": 87_768_224,
    # What trains in the paper's runs, and the net's stem, first stage and norms, which do not.
    "detr_r50": 41_302_368 + 9_408 + 212_992 + 53_120,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "t5_small": 60_506_624,
    "t5_base": 222_903_552,
    "t5_large": 737_668_096,
    "t5_3b": 2_851_598_336,
    "t5_11b": 11_307_321_344,
    "t5_1.1_small": 76_961_152,
    "t5_1.1_base": 247_577_856,
    "t5_1.1_large": 783_150_080,
    "t5_1.1_xl": 2_849_757_184,
    "t5_1.1_xxl": 11_135_332_352,
    "mt5_small": 300_176_768,
    "mt5_base": 582_401_280,
    "mt5_large": 1_229_581_312,
    "mt5_xl": 3_742_619_648,
    "mt5_xxl": 12_921_057_280,
    "bart_base": 139_420_416 - 4 * 768,  # theirs has rows for padding
    "bart_large": 406_291_456 - 4 * 1024,
    "mixtral_8x7b": 46_702_792_704,
    "deepseek_moe_16b": 16_375_728_128,
    "mamba_130m": 129_135_360,
    "mamba_370m": 371_516_416,
    "mamba_790m": 793_204_224,
    "mamba_1.4b": 1_372_178_432,
    "mamba_2.8b": 2_768_345_600,
}
ACTIVE = {  # that work for one token, as the papers round them
    "mixtral_8x7b": 12.9e9,
    "deepseek_moe_16b": 2.8e9,
    "glam_64b_64e": 96.6e9,
    "mamba_2.8b": 2_768_345_600,
}
ROUNDED = ("glam_64b_64e", "switch_base", "gshard_600b")  # the paper states one digit or two
BY_NAME = DECODERS | ENCODERS | VISION


@functools.cache
def count(name):
    preset = (BY_NAME | ENCODER_DECODERS)[name]
    return sum(costs.parameter_groups(preset.kind, preset.config).values())


@pytest.mark.each_run(
    "gpt2_small",
    "bloom_176b",
    "llama_7b",
    "bert_base",
    "roberta_large",
    "distilbert",
    "vit_b16",
    "deit_s16_distilled",
    "swin_t",
    "detr_r50",
    "resnet50",
    "t5_small",
    "t5_1.1_base",
    "mt5_base",
    "bart_base",
    "mixtral_8x7b",
    "mamba_2.8b",
)
@pytest.mark.parametrize("name", EXACT)
def test_counts_of_released_weights_are_exact(name):
    assert count(name) == EXACT[name]


@pytest.mark.each_run(
    "gpt1",
    "gpt3_175b",
    "opt_175b",
    "palm_540b",
    "mt_nlg_530b",
    "gopher_280b",
    "chinchilla_70b",
    "galactica_120b",
    "lamda_137b",
    "jurassic1_jumbo",
    "llama_33b",
    "glm_130b",
    "glam_64b_64e",
    "mamba_2.8b",
    "rwkv4_14b",
    "bert_large",
    "roberta_base",
    "vit_s16",
)
@pytest.mark.parametrize("name", BY_NAME)
def test_every_size_is_within_2_percent_of_its_published_count(name):
    preset = BY_NAME[name]
    if name in ROUNDED:
        return
    if preset.published is None:
        assert name.startswith("cpu_")
    else:
        assert abs(count(name) / preset.published - 1) < 0.02


@pytest.mark.parametrize("name", ROUNDED)
def test_counts_of_many_experts_are_the_papers_to_its_digits(name):
    published = (BY_NAME | ENCODER_DECODERS)[name].published
    digits = len(f"{published:.0f}".rstrip("0"))
    assert f"{count(name):.{digits - 1}e}" == f"{published:.{digits - 1}e}"


def test_counts_of_switch_large_and_of_rwkv_in_closed_form():
    """Fedus 2021, table 9 says 26B of the first; Peng 2023, appendix B has the second."""
    width, hidden, kernels = 1024, 2816, 3
    attention, each = 4 * width * 16 * 64, kernels * width * hidden
    layers = 24 * attention + 24 * 2 * attention + 24 * each + 24 * (128 * each + 128 * width)
    norms = 24 * 2 * width + 24 * 3 * width + 2 * width
    assert count("switch_large") == layers + norms + 32_128 * width + 2 * 32 * 16
    for name, preset in DECODERS.items():
        if name.startswith("rwkv4"):
            vocab, depth, d = 50_277, preset.config.layers, preset.config.width
            assert count(name) == 2 * vocab * d + 13 * d * d * depth + d * (11 * depth + 4)


@pytest.mark.parametrize("name", ACTIVE)
def test_parameters_that_work_for_a_token_are_as_published(name):
    active = count(name) - idle_parameters(DECODERS[name].config)
    assert abs(active / ACTIVE[name] - 1) < 0.015


@pytest.mark.parametrize("name", ["cpu_2m", "cpu_12m", "cpu_30m"])
def test_sizes_for_a_cpu_are_as_their_names_say(name):
    assert abs(count(name) / 1e6 / int(name[4:-1]) - 1) < 0.12


@pytest.mark.each_run("palm_8b", "switch_base")
@pytest.mark.parametrize(
    "name",
    ["opt_350m", "gopher_44m", "bloom_560m", "palm_8b", "glm_130b", "glam_64b_64e", "switch_base"],
)
def test_one_layer_times_their_number_counts_as_all_layers_do(name):
    preset = (DECODERS | ENCODER_DECODERS)[name]
    config = replace(preset.config, layers=min(preset.config.layers, 9))
    if preset.kind == "encoder_decoder":
        one = ("attention/dense", "attention/dense", "attention/experts")
        config = replace(config, decoder_layers=5, decoder_layer_kinds=one)
    shapes = parameter_shapes(preset.kind, config)
    want = {key: sum(x.size for x in jax.tree.leaves(tree)) for key, tree in shapes.items()}
    assert costs.parameter_groups(preset.kind, config) == want


def test_heads_make_the_width_where_the_published_table_has_a_misprint():
    for name in ("gpt3_1.3b", "gpt3_13b"):
        config = DECODERS[name].config
        assert config.heads * config.head_dim == config.width
    assert DECODERS["lamda_137b"].config.heads * 128 == 2 * DECODERS["lamda_137b"].config.width


def test_every_preset_states_its_sizes_and_its_source():
    for preset in (preset for table in TABLES.values() for preset in table.values()):
        assert preset.source and getattr(preset.config, "vocab_size", 1)
        assert preset.kind != "decoder" or preset.config.kv_heads is not None


def test_every_rate_and_batch_has_a_source_that_was_looked_up():
    for name, preset in (BY_NAME | ENCODER_DECODERS).items():
        assert preset.source, name
        stated = preset.learning_rate or preset.batch_tokens or preset.trained_tokens
        if stated or preset.optimizer:
            assert "from memory" not in (preset.training_source or preset.source), name


def test_a_preset_trains_as_its_paper_says():
    """Where that is not AdamW with 2,000 steps of warm-up and a cosine to a tenth."""
    found = {name: load_module("configs/decoder.py").get_config(name) for name in (
        "pangu_alpha_200b", "palm_8b", "glm_130b", "gpt1", "llama_7b")}  # fmt: skip
    assert found["pangu_alpha_200b"].optimizer.learning_rate == 2e-5
    palm = found["palm_8b"].optimizer
    assert (palm.name, palm.schedule, palm.learning_rate) == (
        "adafactor",
        "flat_inverse_sqrt",
        0.01,
    )
    assert schedule(resolve(found["palm_8b"]).run.optimizer, 100)(1) == pytest.approx(0.01)
    assert found["glm_130b"].model.dropout == 0.1
    # 100 epochs of 0.8e9 words in batches of 64 x 512 tokens
    assert found["gpt1"].steps == pytest.approx(80e9 / 64 / 512, rel=0.01)
    llama = found["llama_7b"].optimizer
    assert (llama.name, llama.schedule, llama.b2) == ("adam", "cosine", 0.95)
