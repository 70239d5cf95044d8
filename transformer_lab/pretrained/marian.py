"""MarianMT (Junczys-Dowmunt 2018), Hugging Face's `marian`: the encoder-decoder of 2017.

BART has the same layers and names."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_lab.errors import LabError
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.ops.positions import sinusoids
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.names import (
    ROW,
    SAME,
    NameMap,
    Rule,
    Transform,
    agrees,
    differ,
    layers,
    within,
)

FIELDS = {
    "vocab_size": ("vocab_size", 58101),
    "max_position_embeddings": ("max_length", 1024),
    "scale_embedding": ("embedding_scale", False),
    "tie_word_embeddings": ("tie_head", True),
    "activation_function": ("activation", "gelu"),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.0),
    "activation_dropout": ("feed_forward_dropout", 0.0),
    "init_std": ("init_std", 0.02),
}
POSITIONS = {  # ours -> where a file may have the table
    "source_positions/embedding": "model.encoder.embed_positions.weight",
    "target_positions/embedding": "model.decoder.embed_positions.weight",
}
SHARED, HEAD, BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
LAYER = {
    **within("attention", "self_attn", **ATTENTION),
    "attention_norm": "self_attn_layer_norm",
    "feed_forward/up": "fc1",
    "feed_forward/down": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
CROSS = within("cross_attention", "encoder_attn", **ATTENTION)
CROSS["cross_attention_norm"] = "encoder_attn_layer_norm"


def read_sizes(settings: Settings) -> dict[str, int]:
    """The width, and for encoder and decoder the layers, heads and feed-forward width."""
    width = _alias(settings, "d_model", "hidden_size", 1024)
    sizes = {"width": width}
    for stack, prefix in (("encoder", ""), ("decoder", "decoder_")):
        encoder = stack == "encoder"
        name = f"{stack}_attention_heads"
        heads = _alias(settings, name, "num_attention_heads" if encoder else None, 16)
        if width % heads:
            raise settings.error(name, f"d_model = {width} is not a multiple of it")
        layers = _alias(settings, f"{stack}_layers", "num_hidden_layers" if encoder else None, 12)
        sizes |= {
            f"{prefix}layers": layers,
            f"{prefix}heads": heads,
            f"{prefix}head_dim": width // heads,
            f"{prefix}feed_forward_width": settings.integer(f"{stack}_ffn_dim", 4096),
        }
    return sizes


def _alias(settings: Settings, name: str, alias: str | None, default: int) -> int:
    """A size that a general name may give instead of the stack's own; LabError if they differ."""
    general = settings.integer(alias, None) if alias else None
    value = settings.integer(name, general or default)
    if general not in (None, value):
        raise settings.error(alias, f"{name} = {value} says otherwise")
    return value


def write_sizes(config: EncoderDecoderConfig, family: str) -> dict[str, int]:
    """Hugging Face's settings of the sizes that `read_sizes` reads."""
    written = {"d_model": config.width}
    for side, stack in (("encoder", config), ("decoder", config.decoder)):
        if stack.key_value_heads != stack.heads or stack.heads * stack.head_dim != stack.width:
            raise LabError(
                f"the {side}'s {stack.heads} heads of {stack.head_dim} with {stack.key_value_heads}"
                f" for keys and values have no place in a {family} model of width {stack.width}"
            )
        written[f"{side}_layers"] = stack.layers
        written[f"{side}_attention_heads"] = stack.heads
        written[f"{side}_ffn_dim"] = stack.feed_forward_width
    return written


def names_of(config: EncoderDecoderConfig, learned: Transform = SAME) -> NameMap:
    """The name map; which tensors hold the embeddings depends on what is tied.

    `learned` converts tables of learned positions to the file's layout."""
    shared, tied_head = config.tie_source_target, config.tie_head
    target = SHARED if shared else TARGET
    rules = [Rule("target_embedding/embedding", target)]
    for stack, parts in (("encoder", LAYER), ("decoder", LAYER | CROSS)):
        rules += layers(config, stack, f"model.{stack}.layers", parts)
    copies = {SOURCE: SHARED, TARGET: SHARED} if shared else {}
    if not shared:
        rules.append(Rule("source_embedding/embedding", SOURCE))
    if tied_head:
        copies[HEAD] = target
    else:
        rules.append(Rule("head/embedding", HEAD))
    if config.head_bias:
        rules.append(Rule("head_bias", BIAS, ROW))
    # If the head is not tied, recent versions of transformers tie nothing and read every table.
    written = frozenset(copies) if shared and not tied_head else frozenset()
    unused = frozenset() if shared else frozenset([SHARED])
    derived = {}
    if config.positions == "learned":
        rules += [Rule(ours, theirs, learned) for ours, theirs in POSITIONS.items()]
    else:
        formula = lambda: _sinusoids(config.max_length, config.width)  # noqa: E731
        derived = dict.fromkeys(POSITIONS.values(), formula)
    return NameMap(tuple(rules), copies, derived, unused, written)


def split(tensors: Tensors) -> bool:
    """Whether the two languages have separate embeddings.

    If the head is not tied and a file has both tables, recent versions read them separately."""
    return differ(tensors, SHARED, SOURCE, TARGET)


def _sinusoids(length: int, width: int) -> np.ndarray:
    return np.asarray(sinusoids(jnp.arange(length), width, halves=True))


def _positions(tensors: Mapping[str, np.ndarray], length: int, width: int) -> str:
    """The kind of positions: learned if the file's tables differ from the sinusoids' formula."""
    tables = [tensors[name] for name in POSITIONS.values() if name in tensors]
    formula = _sinusoids(length, width) if tables else None
    other = any(t.shape == (1,) or t.shape == formula.shape and not agrees(t, formula)
                for t in tables)  # fmt: skip
    return "learned" if other else "sinusoidal_halves"


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    shared = settings.flag("share_encoder_decoder_embeddings", True)
    source_vocab = found["vocab_size"]
    vocab = settings.integer("decoder_vocab_size", None) or source_vocab
    if shared and vocab != source_vocab:
        raise settings.error(
            "decoder_vocab_size", f"shared embeddings need that of vocab_size = {source_vocab}"
        )
    one = shared and not (not found["tie_head"] and split(tensors))
    sizes = read_sizes(settings)
    return sizes | {
        "vocab_size": vocab,
        "source_vocab_size": None if one else source_vocab,
        "tie_source_target": one,
        "head_bias": BIAS in tensors,
        "positions": _positions(tensors, found["max_length"], sizes["width"]),
    }


def _write(config: EncoderDecoderConfig, pad: int) -> dict[str, Any]:
    return write_sizes(config, "marian") | {
        "vocab_size": config.source_vocab_size or config.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.tie_source_target,
    }


FAMILY = Family(
    "marian",
    "encoder_decoder",
    ("MarianMTModel",),
    FIELDS,
    lambda config, pad: names_of(config),
    constants={"norm_epsilon": 1e-5},
    fixed={
        "add_final_layer_norm": (False,),
        "normalize_before": (False,),
        "normalize_embedding": (False,),
        "static_position_embeddings": (True,),
    },
    # Whether there is a bias is told by the tensor final_logits_bias.
    ignored=("add_bias_logits", "extra_pos_embeddings"),
    read=_read,
    write=_write,
)
