"""Imported encoder-decoders computed on reference inputs, under Hugging Face's names."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.loop import search
from transformer_lab.errors import LabError
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig, build
from transformer_lab.pretrained.generation import SpecialIds

INPUTS = ("input_ids", "attention_mask", "decoder_input_ids")
Output = tuple[np.ndarray, np.ndarray | None]  # values, and where they count (None: everywhere)


@cache
def shapes(config: EncoderDecoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its path; nothing is computed."""
    ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    mask = jax.ShapeDtypeStruct((1, 1), jnp.bool_)
    tree = jax.eval_shape(build(config).init, jax.random.key(0), ids, mask, ids)["params"]
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(k.key for k in path): leaf.shape for path, leaf in leaves}


def _source(
    config: EncoderDecoderConfig, inputs: Mapping[str, np.ndarray]
) -> tuple[Int[Array, "b s"], Bool[Array, "b s"]]:
    """The source ids and their mask, all True unless given."""
    source = token_ids(inputs, "input_ids", config.source_vocab_size or config.vocab_size)
    mask = jnp.asarray(inputs.get("attention_mask", np.ones(source.shape))) != 0
    if mask.shape != source.shape:
        raise LabError(f"attention_mask has the shape {mask.shape}, input_ids {source.shape}")
    return source, mask


def outputs(
    config: EncoderDecoderConfig, params: Any, inputs: Mapping[str, np.ndarray]
) -> dict[str, Output]:
    """All that the inputs determine: states, the first layer's weights, and logits if the
    decoder's ids are among the inputs."""
    source, mask = _source(config, inputs)
    found, (encode, decode) = {}, _compiled(config)
    memory, captured = encode({"params": params}, source, mask)
    weights = captured["intermediates"]["encoder"]["layer_0"]["attention"]["weights"][0]
    if "decoder_input_ids" in inputs:
        target = token_ids(inputs, "decoder_input_ids", config.vocab_size)
        states, logits = decode({"params": params}, target, memory, mask)
        found = {"last_hidden_state": (states, None), "logits": (logits, None)}
    found["encoder_last_hidden_state"] = memory, mask[..., None]
    found["attention_layer0"] = weights, mask[:, None, :, None] & mask[:, None, None, :]
    return jax.device_get(found)


@cache
def _compiled(config: EncoderDecoderConfig) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Encoder with captured weights; decoder with logits. Compiled once a config."""
    model = build(config)

    def decode(variables, target, memory, mask):
        states = model.apply(variables, target, memory, mask, method="decode")
        return states, model.apply(variables, states, method="logits")

    encode = partial(model.apply, method="encode", mutable=["intermediates"])
    return jax.jit(encode), jax.jit(decode)


def generate(
    config: EncoderDecoderConfig,
    params: Any,
    inputs: Mapping[str, np.ndarray],
    decode: DecodeConfig,
    special: SpecialIds,
) -> tuple[Int[np.ndarray, "bn t"], Float[np.ndarray, "bn"]]:
    """Each source's `n_best` results under each other, start token first, padding after the end
    token, as long as the longest; and their scores."""
    source, mask = _source(config, inputs)
    model, variables = build(config), {"params": params}
    length = decode.max_new_tokens
    beams = decode.beam_size > 1
    # Their beam search fills rows with the end token if the padding is token 0.
    fill = (special.pad or special.eos) if beams else special.pad

    @jax.jit
    def run(variables, source, mask):
        return search(
            lambda tokens, cache: model.apply(variables, tokens, cache, method="step"),
            model.apply(variables, source, mask, length, method="init_cache"),
            jnp.full(source.shape[0], special.start, jnp.int32),
            decode,
            eos_id=special.eos,
            pad_id=fill,
            max_new_tokens=length,
        )

    found = jax.device_get(run(variables, source, mask))
    tokens = found.tokens[..., : found.lengths.max()]
    tokens = np.pad(tokens, ((0, 0), (0, 0), (1, 0)), constant_values=special.start)
    return tokens.reshape(-1, tokens.shape[-1]), found.scores.reshape(-1)


def token_ids(inputs: Mapping[str, np.ndarray], name: str, vocab_size: int) -> Int[Array, "b t"]:
    """An input's ids, checked: a gather clips or fills an id beyond the table without a word."""
    if name not in inputs:
        raise LabError(f"the inputs have no {name}")
    ids = inputs[name]
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
        raise LabError(f"{name} is {ids.dtype} {ids.shape}, needs whole numbers [batch, length]")
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise LabError(f"{name} holds ids outside 0..{vocab_size - 1}")
    return jnp.asarray(ids, jnp.int32)
