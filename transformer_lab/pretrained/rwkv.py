"""RWKV-4 (Peng 2023), as in Hugging Face's `rwkv`."""

from typing import Any

import numpy as np

from transformer_lab.layers.block_config import MixerConfig
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.decoders import architectures, name_map
from transformer_lab.pretrained.names import NameMap, Rule, Transform, dense, norm

MIX = Transform(lambda x: x[None, None], lambda x: [np.reshape(x, -1)])  # [D] is [1, 1, D]
NORMS = {"mixer_norm": "ln1", "feed_forward_norm": "ln2"}


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    inner = settings.integer("attention_hidden_size", None) or found["width"]
    return {
        "mixer": MixerConfig("rwkv", inner_width=inner),
        "feed_forward_width": settings.integer("intermediate_size", None) or 4 * found["width"],
        "halved_every": settings.integer("rescale_every", 6, least=0),
        "final_norm_epsilon": 1e-5,  # whatever epsilon the other norms have
    }


def _write(config: DecoderConfig, pad: int) -> dict[str, Any]:
    return {
        "attention_hidden_size": config.mixer.inner_width,
        "intermediate_size": config.feed_forward_width,
        "rescale_every": config.halved_every,
    }


def _names(config: DecoderConfig, pad: int) -> NameMap:
    body = "rwkv.embeddings.weight", "rwkv.blocks", NORMS, "rwkv.ln_out"
    ours, theirs = "decoder/layer_{i}", "rwkv.blocks.{i}"
    rules = norm("embedding_norm", "rwkv.blocks.0.pre_ln")
    for part in ("key", "value", "receptance"):
        rules += dense(f"{ours}/mixer/{part}", f"{theirs}.attention.{part}", False)
        rules += dense(f"{ours}/feed_forward/{part}", f"{theirs}.feed_forward.{part}", False)
        name = f"{theirs}.attention.time_mix_{part}"
        rules.append(Rule(f"{ours}/mixer/{part}_mix", name, MIX))
        if part != "value":
            name = f"{theirs}.feed_forward.time_mix_{part}"
            rules.append(Rule(f"{ours}/feed_forward/{part}_mix", name, MIX))
    rules += dense(f"{ours}/mixer/out", f"{theirs}.attention.output", False)
    rules.append(Rule(f"{ours}/mixer/log_decay", f"{theirs}.attention.time_decay"))
    rules.append(Rule(f"{ours}/mixer/bonus", f"{theirs}.attention.time_first"))
    return name_map(config, *body, *rules, head="head.weight")


FAMILY = Family(
    "rwkv",
    "decoder",
    architectures("Rwkv"),
    {
        "vocab_size": ("vocab_size", 50277),
        "context_length": ("max_length", 1024),  # trained on; the architecture has no limit
        "hidden_size": ("width", 4096),
        "num_hidden_layers": ("layers", 32),
        "layer_norm_epsilon": ("norm_epsilon", 1e-5),
        "tie_word_embeddings": ("tie_head", False),
    },
    _names,
    constants={
        "positions": "none",
        "embedding_norm": True,
        "feed_forward": "shifted",
        "dropout": 0.0,
        "depth_scaled_init": False,
    },
    aliases={"max_position_embeddings": "context_length"},
    read=_read,
    write=_write,
)
