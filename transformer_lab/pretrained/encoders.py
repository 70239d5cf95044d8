"""Imported encoder-only models: where their tensors stand, and their numbers on reference inputs,
under Hugging Face's names."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from transformer_lab.errors import LabError
from transformer_lab.models import parameter_shapes
from transformer_lab.models.encoder import EncoderConfig, build
from transformer_lab.pretrained.names import Rule, Transform, dense, norm
from transformer_lab.pretrained.running import Output, token_ids

KIND = "encoder"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LAYER = {  # of BERT and RoBERTa: ours -> theirs
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}


def body(
    config: EncoderConfig,
    prefix: str,
    layers: str = "encoder.layer",
    layer: Mapping[str, str] = LAYER,
    first: int = 0,
) -> list[Rule]:
    """Embeddings and layers. Position 0 stands in row `first`: only padding reads those before."""
    shift = Transform(lambda x: np.pad(x, ((first, 0), (0, 0))), lambda x: [x[first:]])
    tables = f"{prefix}embeddings."
    rules = [
        Rule("embedding/embedding", f"{tables}word_embeddings.weight"),
        Rule("positions/embedding", f"{tables}position_embeddings.weight", shift),
        *norm("embedding_norm", f"{tables}LayerNorm"),
    ]
    if config.types:
        rules.append(Rule("type_embedding/embedding", f"{tables}token_type_embeddings.weight"))
    for ours, theirs in layer.items():
        rule = norm if ours.endswith("_norm") else dense
        rules += rule("encoder/layer_{i}/" + ours, f"{prefix}{layers}." + "{i}." + theirs)
    return rules


@cache
def shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its path; nothing is computed."""
    flat = flatten_dict(parameter_shapes(KIND, config), sep="/")
    return {path: leaf.shape for path, leaf in flat.items()}


def outputs(
    config: EncoderConfig, params: Any, inputs: Mapping[str, np.ndarray]
) -> dict[str, Output]:
    """Final states, the first layer's weights, and what the head makes of them."""
    ids = token_ids(inputs, "input_ids", config.vocab_size)
    mask = jnp.asarray(inputs.get("attention_mask", np.ones(ids.shape))) != 0
    types = None
    if "token_type_ids" in inputs:
        types = token_ids(inputs, "token_type_ids", config.types)
    for name, value in (("attention_mask", mask), ("token_type_ids", types)):
        if value is not None and value.shape != ids.shape:
            raise LabError(f"{name} has the shape {value.shape}, input_ids {ids.shape}")
    out, weights = _compiled(config)({"params": params}, ids, mask, types)
    tokens = mask[..., None]
    found = {"last_hidden_state": (out["states"], tokens)}
    found["attention_layer0"] = weights, mask[:, None, :, None] & mask[:, None, None, :]
    if "pooled" in out:
        found["pooler_output"] = out["pooled"], None
    if "mlm" in out:
        found["logits"] = found["prediction_logits"] = out["mlm"], tokens
    if "nsp" in out:
        found["seq_relationship_logits"] = out["nsp"], None
    if config.head == "span":
        found["start_logits"], found["end_logits"] = ((out["logits"][..., i], mask) for i in (0, 1))
    elif "logits" in out:
        found["logits"] = out["logits"], None if config.head == "classes" else tokens
    return jax.device_get(found)


@cache
def _compiled(config: EncoderConfig) -> Callable[..., Any]:
    model = build(config)

    @jax.jit
    def run(variables, ids, mask, types):
        out, captured = model.apply(variables, ids, mask, types, mutable=["intermediates"])
        return out, captured["intermediates"]["encoder"]["layer_0"]["attention"]["weights"][0]

    return run
