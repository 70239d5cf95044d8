"""T5 (Raffel 2020), its version 1.1, FLAN-T5 and mT5, as in Hugging Face's `t5` and `mt5`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.models.presets.encoder_decoders import T5
from transformer_lab.ops.activations import GATED
from transformer_lab.pretrained.decoder_settings import read_table, write_fields
from transformer_lab.pretrained.encoder_decoder_settings import check_kind, differ, refuse_lost
from transformer_lab.pretrained.keys import ACTIVATIONS, Settings
from transformer_lab.pretrained.names import SAME, NameMap, Rule, Transform, dense, norm
from transformer_lab.pretrained.running import INPUTS, generate, outputs, shapes

__all__ = ["INPUTS", "KIND", "generate", "outputs", "reading", "shapes", "writing"]

KIND = "encoder_decoder"
ARCHITECTURES = (
    "T5ForConditionalGeneration", "T5WithLMHeadModel", "T5Model", "MT5ForConditionalGeneration",
    "MT5Model",
)  # fmt: skip
_GATES = {gate: name for name, gate in GATED.items()}
# Their "gated-gelu" is the approximation by tanh, "gelu" the exact function.
ACTIVATIONS_T5 = {"gated-gelu": "geglu_tanh"} | ACTIVATIONS
ACTIVATIONS_T5 |= {
    f"gated-{theirs}": _GATES[ours]
    for theirs, ours in ACTIVATIONS.items()
    if ours in _GATES and theirs != "gelu"
}
FIELDS = {
    "vocab_size": ("vocab_size", 32128),
    "n_positions": ("max_length", 512),
    "d_model": ("width", 512),
    "d_kv": ("head_dim", 64),
    "d_ff": ("feed_forward_width", 2048),
    "num_layers": ("layers", 6),
    "num_heads": ("heads", 8),
    "relative_attention_num_buckets": ("relative_buckets", 32),
    "relative_attention_max_distance": ("relative_max_distance", 128),
    "layer_norm_epsilon": ("norm_epsilon", 1e-6),
    "feed_forward_proj": ("activation", "relu"),
    "dropout_rate": ("dropout", 0.1),
    "tie_word_embeddings": ("tie_head", True),
}
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
HEAD = "lm_head.weight"
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"  # of old files


def reading(
    settings: Settings, tensors: Mapping[str, np.ndarray]
) -> tuple[EncoderDecoderConfig, NameMap]:
    """The model that their settings describe, and where its weights stand.

    Recent writers call every head tied: whether it is, the tensors say.
    """
    config = replace(_read(settings), tie_head=not differ(tensors, *EMBEDDINGS, HEAD))
    return config, _names(config)


def _read(settings: Settings) -> EncoderDecoderConfig:
    check_kind(settings, ("t5", "mt5"), ARCHITECTURES)
    found = read_table(settings, FIELDS, ACTIVATIONS_T5)
    act = settings.values.get("feed_forward_proj", "relu")
    name = "gelu_new" if act == "gated-gelu" else act.removeprefix("gated-")
    settings.fix({"dense_act_fn": (name,), "is_gated_act": (name != act and act != "gelu_new",)})
    scaled = settings.flag("scale_decoder_outputs", found["tie_head"])
    config = replace(
        T5,
        **found,
        decoder_layers=settings.integer("num_decoder_layers", None) or found["layers"],
        attention_dropout=found["dropout"],
        feed_forward_dropout=found["dropout"],
        scale_output=scaled and settings.values.get("model_type") != "mt5",
    )
    settings.finish()
    return config


def writing(config: EncoderDecoderConfig) -> tuple[dict[str, Any], NameMap]:
    """Their settings of our model, special tokens aside, and where the weights go.

    They scale no embeddings: ours are scaled in the file, and a tied head's states scaled back.
    """
    theirs = config
    if config.embedding_scale and not (config.tie_head and config.scale_output):
        scaled = config.tie_head or config.scale_output
        theirs = replace(config, embedding_scale=False, scale_output=scaled)
    written = write_fields(theirs, "t5", ARCHITECTURES[0], FIELDS, ACTIVATIONS_T5) | {
        "is_encoder_decoder": True,
        "num_decoder_layers": config.decoder.layers,
        "scale_decoder_outputs": theirs.scale_output,
    }
    refuse_lost(theirs, _read(Settings(written, "t5")), "t5")
    return written, _names(config)


def _names(config: EncoderDecoderConfig) -> NameMap:
    table = SAME
    if config.embedding_scale:
        root = np.float32(config.width**0.5)
        table = Transform(lambda x: x * root, lambda x: [x / root])
    rules = [Rule("target_embedding/embedding", EMBEDDINGS[0], table)]
    copies = dict.fromkeys(EMBEDDINGS[1:], EMBEDDINGS[0])
    if config.tie_head:
        copies[HEAD] = EMBEDDINGS[0]
    else:
        rules.append(Rule("head/embedding", HEAD))
    for stack in ("encoder", "decoder"):
        rules += _layers(config, stack)
    return NameMap(tuple(rules), copies, unused=frozenset([UNUSED]))


def _layers(config: EncoderDecoderConfig, stack: str) -> list[Rule]:
    ours, theirs = stack + "/layer_{i}", stack + ".block.{i}.layer"
    attentions = {"attention": "SelfAttention"}
    if stack == "decoder":
        attentions["cross_attention"] = "EncDecAttention"
    rules = norm(f"{stack}/final_norm", f"{stack}.final_layer_norm", bias=False)
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    rules.append(Rule(f"{stack}/score_bias/embedding", bias))
    for place, (mine, other) in enumerate(attentions.items()):
        for part in ("query", "key", "value", "out"):
            name = f"{theirs}.{place}.{other}.{part[0]}"
            rules += dense(f"{ours}/{mine}/{part}", name, bias=False)
        rules += norm(f"{ours}/{mine}_norm", f"{theirs}.{place}.layer_norm", bias=False)
    last = f"{theirs}.{len(attentions)}"
    parts = {"up": "wi", "down": "wo"}
    if config.activation in GATED:
        parts = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
    for mine, other in parts.items():
        rules += dense(f"{ours}/feed_forward/{mine}", f"{last}.DenseReluDense.{other}", bias=False)
    return [*rules, *norm(f"{ours}/feed_forward_norm", f"{last}.layer_norm", bias=False)]
