"""Imported decoder-only models computed on reference inputs, under Hugging Face's names."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jaxtyping import Float, Int

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.loop import search
from transformer_lab.errors import LabError
from transformer_lab.models import parameter_shapes
from transformer_lab.models.decoder import DecoderConfig, build
from transformer_lab.pretrained.generation import SpecialIds
from transformer_lab.pretrained.running import Output, token_ids

KIND = "decoder"
INPUTS = ("input_ids", "attention_mask", "prompt")


@cache
def shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its path; nothing is computed."""
    flat = flatten_dict(parameter_shapes(KIND, config), sep="/")
    return {path: leaf.shape for path, leaf in flat.items()}


def outputs(
    config: DecoderConfig, params: Any, inputs: Mapping[str, np.ndarray]
) -> dict[str, Output]:
    """Logits, final states and the first layer's weights of `input_ids`.

    Positions count from the first token that the attention mask shows.
    """
    if "input_ids" not in inputs:
        return {}
    ids = token_ids(inputs, "input_ids", config.vocab_size)
    mask = jnp.asarray(inputs.get("attention_mask", np.ones(ids.shape))) != 0
    if mask.shape != ids.shape:
        raise LabError(f"attention_mask has the shape {mask.shape}, input_ids {ids.shape}")
    logits, states, weights = _compiled(config)({"params": params}, ids, mask.astype(jnp.int32))
    found = {"logits": (logits, mask[..., None])}
    found["attention_layer0"] = weights, mask[:, None, :, None] & mask[:, None, None, :]
    if config.embedding_width is None:  # theirs are projected
        found["last_hidden_state"] = states, mask[..., None]
    return jax.device_get(found)


@cache
def _compiled(config: DecoderConfig) -> Callable[..., Any]:
    model = build(config)

    @jax.jit
    def run(variables, ids, segments):
        call = partial(model.apply, variables, ids, None, segments)
        logits, captured = call(mutable=["intermediates"])
        weights = captured["intermediates"]["decoder"]["layer_0"]["attention"]["weights"][0]
        return logits, call(method="states"), weights

    return run


def generate(
    config: DecoderConfig,
    params: Any,
    inputs: Mapping[str, np.ndarray],
    decode: DecodeConfig,
    special: SpecialIds,
) -> tuple[Int[np.ndarray, "bn t"], Float[np.ndarray, "bn"]]:
    """Each prompt with its `n_best` continuations under each other, padding after the end token, as
    long as the longest; and their scores. Prompts have one length and no padding."""
    prompt = token_ids(inputs, "prompt", config.vocab_size)
    model, new = build(config), decode.max_new_tokens
    rows, length = prompt.shape[0], prompt.shape[1] + new

    @jax.jit
    def run(variables, prompt):
        cache = model.apply(variables, rows, length, method="init_cache")
        if prompt.shape[1] > 1:
            before = prompt[:, :-1]
            _, cache = model.apply(variables, before, None, length, method="prefill")
        return search(
            lambda tokens, cache: model.apply(variables, tokens, cache, method="step"),
            cache,
            prompt[:, -1],
            decode,
            eos_id=special.eos,
            pad_id=special.pad,
            max_new_tokens=new,
            before=prompt[:, :-1],
        )

    found = jax.device_get(run({"params": params}, prompt))
    tokens = found.tokens[..., : found.lengths.max()]
    before = np.broadcast_to(np.asarray(prompt)[:, None], (*tokens.shape[:2], prompt.shape[1]))
    tokens = np.concatenate([before, tokens], axis=-1)
    return tokens.reshape(-1, tokens.shape[-1]), found.scores.reshape(-1)
