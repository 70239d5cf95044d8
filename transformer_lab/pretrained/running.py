"""Imported encoder-decoders computed on reference inputs, under Hugging Face's names."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from transformer_lab.errors import LabError
from transformer_lab.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig, build

INPUTS = ("input_ids", "attention_mask", "decoder_input_ids")
Output = tuple[np.ndarray, np.ndarray | None]  # values, and where they count (None: everywhere)


def shapes(config: EncoderDecoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its path; nothing is computed."""
    ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    mask = jax.ShapeDtypeStruct((1, 1), jnp.bool_)
    tree = jax.eval_shape(build(config).init, jax.random.key(0), ids, mask, ids)["params"]
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(k.key for k in path): leaf.shape for path, leaf in leaves}


def source_of(
    config: EncoderDecoderConfig, inputs: Mapping[str, np.ndarray]
) -> tuple[Int[np.ndarray, "b s"], Bool[np.ndarray, "b s"]]:
    """The source ids and their mask, all True unless given."""
    source = _ids(inputs, "input_ids", config.source_vocab_size or config.vocab_size)
    mask = np.asarray(inputs.get("attention_mask", np.ones_like(source))) != 0
    if mask.shape != source.shape:
        raise LabError(f"attention_mask has the shape {mask.shape}, input_ids {source.shape}")
    return source, mask


def outputs(
    config: EncoderDecoderConfig, params: Any, inputs: Mapping[str, np.ndarray]
) -> dict[str, Output]:
    """All that the inputs determine: states, the first layer's weights, and logits if the
    decoder's ids are among the inputs."""
    source, mask = source_of(config, inputs)
    model, variables = build(config), {"params": params}
    memory, captured = _encode(model, variables, source, mask)
    weights = captured["encoder"]["layer_0"]["attention"]["weights"][0]
    pairs = mask[:, None, :, None] & mask[:, None, None, :]
    found = {
        "encoder_last_hidden_state": (np.asarray(memory), mask[..., None]),
        "attention_layer0": (np.asarray(weights), pairs),
    }
    if "decoder_input_ids" in inputs:
        target = _ids(inputs, "decoder_input_ids", config.vocab_size)
        states = model.apply(variables, target, memory, mask, method=EncoderDecoder.decode)
        logits = model.apply(variables, states, method=EncoderDecoder.logits)
        found["last_hidden_state"] = (np.asarray(states), None)
        found["logits"] = (np.asarray(logits), None)
    return found


def _encode(
    model: EncoderDecoder, variables: Any, source: np.ndarray, mask: np.ndarray
) -> tuple[Array, Any]:
    memory, captured = model.apply(
        variables, source, mask, method=EncoderDecoder.encode, mutable=["intermediates"]
    )
    return memory, captured["intermediates"]


def _ids(inputs: Mapping[str, np.ndarray], name: str, vocab_size: int) -> np.ndarray:
    """Checked here: a gather clips or fills an id beyond the table without a word."""
    if name not in inputs:
        raise LabError(f"the inputs have no {name}")
    ids = inputs[name]
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
        raise LabError(f"{name} is {ids.dtype} {ids.shape}, needs whole numbers [batch, length]")
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise LabError(f"{name} holds ids outside 0..{vocab_size - 1}")
    return ids.astype(np.int32)
