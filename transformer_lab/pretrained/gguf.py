"""LLaMA and similar models in a GGUF file, read as the Hugging Face model that it was made from.

llama.cpp turns neighbouring numbers of a head where Hugging Face turns number i and i + H/2, so
that its rows of queries and keys stand in another order, which is put right here.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from transformer_lab.pretrained import Pretrained, load_found
from transformer_lab.pretrained.gguf_file import GgufFile
from transformer_lab.pretrained.gguf_tokenizer import tokenizer_files
from transformer_lab.pretrained.hub import HubDirectory
from transformer_lab.pretrained.llama import LAYER

NAMES = {  # llama.cpp's -> Hugging Face's
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
PARTS = dict(
    zip(
        ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate"),
        LAYER.values(),
        strict=False,
    )
) | {"ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
HEADS = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
KEYS = {  # llama.cpp's setting, after the architecture's name -> Hugging Face's
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "attention.key_length": "head_dim",
}
SPECIAL = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}


def load(path: str | Path) -> tuple[Pretrained, dict[str, bytes]]:
    """The model with parameters in float32, and the files of its tokenizer under Hugging Face's
    names. Raises: LabError that says what is wrong with the file, or is not read."""
    file = GgufFile(path)
    config = _config(file)
    tensors = {}
    for name in file.tensors:
        layer, part, leaf = _parts(file, name)
        values = file.weights(name)
        if part in HEADS:
            values = _halves(file, name, values, config.get(HEADS[part]))
        tensors[f"{layer}{PARTS.get(part, NAMES.get(part))}.{leaf}"] = values
    generation = {name: config.pop(name) for name in SPECIAL.values() if name in config}
    found = HubDirectory(file.path, config, generation, tensors)
    return load_found(found), tokenizer_files(file)


def _config(file: GgufFile) -> dict[str, Any]:
    """Hugging Face's settings of the model."""
    values = file.metadata
    kind = values.get("general.architecture")
    if kind != "llama":
        raise file.error(f"general.architecture = {kind!r}: only llama is read")
    of = lambda name: values.get(f"{kind}.{name}")  # noqa: E731
    config: dict[str, Any] = {"model_type": "llama", "hidden_act": "silu"}
    config |= {theirs: _plain(of(name)) for name, theirs in KEYS.items() if of(name) is not None}
    layers = {match[1] for name in file.tensors if (match := re.match(r"blk\.(\d+)\.", name))}
    if config.get("num_hidden_layers") != len(layers):
        raise file.error(f"{kind}.block_count = {of('block_count')}, but it has {len(layers)}")
    if of("expert_count"):
        raise file.error(f"{kind}.expert_count = {of('expert_count')}: experts are not read")
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise file.error("token_embd.weight is missing")
    turned, heads = of("rope.dimension_count"), config.get("num_attention_heads")
    if type(turned) is int and type(heads) is int and heads > 0:
        whole = config.setdefault("head_dim", config.get("hidden_size", 0) // heads)
        if turned != whole:
            raise file.error(f"{kind}.rope.dimension_count = {turned}: only whole heads are turned")
    config |= {
        "vocab_size": table.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }
    if scaling := of("rope.scaling.type"):
        own = {"rope_type": scaling, "factor": _plain(of("rope.scaling.factor"))}
        own["original_max_position_embeddings"] = of("rope.scaling.original_context_length")
        config["rope_scaling"] = {"rope_type": "default"} if scaling == "none" else own
    for name, theirs in SPECIAL.items():
        if (token := values.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[theirs] = token
    return config


def _plain(value: Any) -> Any:
    """The shortest decimal number that rounds to this float32: 1e-5 for 9.99999974e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _parts(file: GgufFile, name: str) -> tuple[str, str, str]:
    """Hugging Face's prefix of the tensor's layer, llama.cpp's name of the part, and the leaf."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in (NAMES if match[1] is None else PARTS):
        raise file.error(f"the tensor {name} is not known in a llama model")
    return "" if match[1] is None else f"model.layers.{int(match[1])}.", match[2], match[3]


def _halves(file: GgufFile, name: str, rows: np.ndarray, heads: Any) -> np.ndarray:
    """Rows whose neighbours are turned together, as those that are half a head apart."""
    if type(heads) is not int or heads < 1 or rows.shape[0] % (2 * heads):
        raise file.error(f"{name} has {rows.shape[0]} rows, which {heads} heads do not divide")
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.swapaxes(pairs, 1, 2).reshape(rows.shape)
