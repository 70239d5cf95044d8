"""Mamba (Gu 2023), as in Hugging Face's `mamba`."""

import math
from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.decoders import architectures, name_map
from transformer_lab.pretrained.keys import words
from transformer_lab.pretrained.names import CONVOLUTION, TRANSPOSE, NameMap, Rule, dense

FIELDS = {
    "vocab_size": ("vocab_size", 50280),
    "hidden_size": ("width", 768),
    "num_hidden_layers": ("layers", 32),
    "layer_norm_epsilon": ("norm_epsilon", 1e-5),
    "tie_word_embeddings": ("tie_head", True),
    "initializer_range": ("init_std", 0.1),
    "state_size": ("mixer.state", 16),
    "conv_kernel": ("mixer.convolution", 4),
    "hidden_act": ("mixer.activation", "silu"),
    "use_bias": ("mixer.bias", False),
    "use_conv_bias": ("mixer.convolution_bias", True),
    "time_step_min": ("mixer.step_min", 1e-3),
    "time_step_max": ("mixer.step_max", 0.1),
}
OURS = "decoder/layer_{i}/mixer"
CONSTANTS = {
    "norm": "rms_norm",
    "positions": "none",
    "feed_forward": "none",
    "dropout": 0.0,
    "depth_scaled_init": False,
    "max_length": 2**20,  # the architecture has no limit
}
# Keys of the initialisation, and of the program that computes the scan.
IGNORED = words("""
    fused_add_norm layer_types rescale_prenorm_residual residual_in_fp32 time_step_floor
    time_step_init_scheme time_step_scale use_associative_scan use_mambapy
""")
IGNORED |= words("d_inner d_model n_layer pad_vocab_size_multiple rms_norm ssm_cfg")  # in old files


def read_inner_width(settings: Settings, found: Found) -> int:
    """The inner width, `expand` times the width, which files may state a second time."""
    inner = settings.integer("expand", 2) * found["width"]
    settings.fix({"intermediate_size": (inner,)})
    return inner


def read_rank(settings: Settings, found: Found, key: str) -> int:
    """The rank of the projection to step sizes; "auto" is a sixteenth of the model's width."""
    if settings.values.get(key, "auto") != "auto":
        return settings.integer(key, 1)
    settings.ignore([key])
    return math.ceil(found["width"] / 16)


def shared_rules(config: DecoderConfig, theirs: str) -> list[Rule]:
    """The rules of the tensors that Mamba and Mamba-2 both have."""
    own = config.mixer
    rules = dense(f"{OURS}/in", f"{theirs}.in_proj", own.bias)
    rules += dense(f"{OURS}/out", f"{theirs}.out_proj", own.bias)
    rules += [Rule(f"{OURS}/log_poles", f"{theirs}.A_log"), Rule(f"{OURS}/skip", f"{theirs}.D")]
    rules.append(Rule(f"{OURS}/convolution_kernel", f"{theirs}.conv1d.weight", CONVOLUTION))
    if own.convolution_bias:
        rules.append(Rule(f"{OURS}/convolution_bias", f"{theirs}.conv1d.bias"))
    return rules


def selective_rules(config: DecoderConfig, theirs: str) -> list[Rule]:
    """The rules of the tensors of a Mamba layer (Gu 2023)."""
    return [
        *shared_rules(config, theirs),
        *dense(f"{OURS}/select", f"{theirs}.x_proj", False),
        Rule(f"{OURS}/step_kernel", f"{theirs}.dt_proj.weight", TRANSPOSE),
        Rule(f"{OURS}/step_bias", f"{theirs}.dt_proj.bias"),
    ]


def names(config: DecoderConfig, *rules: Rule) -> NameMap:
    """The name map: the mixers' rules with those of the embedding and the norms."""
    parts = {"mixer_norm": "norm"}
    body = "backbone.embeddings.weight", "backbone.layers", parts, "backbone.norm_f"
    rename = lambda name: name.replace("backbone.embedding.", "backbone.embeddings.")  # noqa: E731
    return name_map(config, *body, *rules, rename=rename)


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    return {
        "mixer.inner_width": read_inner_width(settings, found),
        "mixer.step_rank": read_rank(settings, found, "time_step_rank"),
    }


def _write(config: DecoderConfig, pad: int) -> dict[str, Any]:
    own = config.mixer
    sizes = {"expand": own.inner_width // config.width, "time_step_rank": own.step_rank}
    return sizes


FAMILY = Family(
    "mamba",
    "decoder",
    architectures("Mamba"),
    FIELDS,
    lambda config, pad: names(config, *selective_rules(config, "backbone.layers.{i}.mixer")),
    constants=CONSTANTS | {"mixer.kind": "mamba"},
    ignored=IGNORED,
    read=_read,
    write=_write,
    idle=lambda config: {"max_length"},
)
