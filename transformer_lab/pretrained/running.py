"""Computes imported models on reference inputs, with one runner for each kind of model.

Inputs and outputs have Hugging Face's names. Outputs have a mask without padding."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_lab import models
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.loop import search
from transformer_lab.errors import LabError
from transformer_lab.pretrained.generation import SpecialIds

Inputs = Mapping[str, np.ndarray]
Values = Array | np.ndarray
Output = tuple[Values, Values | None]  # values, and where they count (None: everywhere)
Generated = tuple[Int[np.ndarray, "bn t"], Float[np.ndarray, "bn"]]


@dataclass(frozen=True)
class Runner:
    """The inputs that a kind of model takes, its outputs, and its search if it generates.

    `generate` gives `n_best` rows for each input row, each with its prompt or start token, padded
    to the longest, and their scores."""

    inputs: tuple[str, ...]
    outputs: Callable[[Any, Any, Inputs], dict[str, Output]]
    generate: Callable[[Any, Any, Inputs, DecodeConfig, SpecialIds], Generated] | None = None


@cache
def _compiled(kind: str, config: Any, stack: str, *methods: str | None) -> Callable[..., Any]:
    """The results of several methods for the same inputs, and the first layer's attention weights
    (None if it has none), compiled."""
    model = models.family(kind).build(config)

    @jax.jit
    def run(params, *inputs):
        more = {"mutable": ["intermediates"]}
        found = [model.apply({"params": params}, *inputs, method=m, **more) for m in methods]
        layer = found[0][1].get("intermediates", {}).get(stack, {}).get("layer_0", {})
        return [out for out, _ in found], layer["attention"]["weights"][0] if layer else None

    return run


@cache
def _applied(kind: str, config: Any) -> Callable[..., Any]:
    """The compiled forward pass of a model."""
    apply = models.family(kind).build(config).apply
    return jax.jit(lambda params, *inputs: apply({"params": params}, *inputs))


@cache
def _both_stacks(kind: str, config: Any) -> Callable[..., Any]:
    """The encoder's states and first attention weights and, given a target, the decoder's states
    and logits, compiled as one."""
    model, more = models.family(kind).build(config), {"mutable": ["intermediates"]}

    @jax.jit
    def run(params, source, mask, target=None):
        variables = {"params": params}
        memory, seen = model.apply(variables, *source, method="encode", **more)
        weights = seen["intermediates"]["encoder"]["layer_0"]["attention"]["weights"][0]
        if target is None:
            return memory, weights, None, None
        states = model.apply(variables, target, memory, mask, method="decode")
        return memory, weights, states, model.apply(variables, states, method="logits")

    return run


def token_ids(inputs: Inputs, name: str, vocab_size: int) -> Int[Array, "b t"]:
    """An input's ids; LabError for ids beyond the table, which JAX would clip silently."""
    if name not in inputs:
        raise LabError(f"the inputs have no {name}")
    ids = inputs[name]
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
        raise LabError(f"{name} is {ids.dtype} {ids.shape}, needs whole numbers [batch, length]")
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise LabError(f"{name} holds ids outside 0..{vocab_size - 1}")
    return jnp.asarray(ids, jnp.int32)


def _tokens(inputs: Inputs, vocab_size: int) -> tuple[Int[Array, "b t"], Bool[Array, "b t"]]:
    """The `input_ids` and their mask, which is True everywhere if none is given."""
    ids = token_ids(inputs, "input_ids", vocab_size)
    mask = jnp.asarray(inputs.get("attention_mask", np.ones(ids.shape))) != 0
    return ids, _alike("attention_mask", mask, ids)


def _alike(name: str, value: Array, ids: Array) -> Array:
    if value.shape != ids.shape:
        raise LabError(f"{name} has the shape {value.shape}, input_ids {ids.shape}")
    return value


def _images(inputs: Inputs) -> Float[Array, "b h w c"]:
    images = inputs.get("pixel_values")
    if images is None or images.ndim != 4:
        raise LabError("the inputs have no pixel_values [batch, channels, height, width]")
    return jnp.asarray(images, jnp.float32).transpose(0, 2, 3, 1)


def _between(mask: Bool[Array, "b t"]) -> Bool[Array, "b 1 t t"]:
    return mask[:, None, :, None] & mask[:, None, None, :]


def _decoder(config: Any, params: Any, inputs: Inputs) -> dict[str, Output]:
    """Logits, states and attention weights; positions count from the first unmasked token."""
    if "input_ids" not in inputs:
        return {}
    ids, mask = _tokens(inputs, config.vocab_size)
    run = _compiled("decoder", config, "decoder", None, "states")
    (logits, states), weights = run(params, ids, None, mask.astype(jnp.int32))
    found = {"logits": (logits, mask[..., None])}
    if weights is not None:
        found["attention_layer0"] = weights, _between(mask)
    if config.embedding_width is None:  # their states are projected to the embedding's width
        found["last_hidden_state"] = states, mask[..., None]
    return found


def _encoder(config: Any, params: Any, inputs: Inputs) -> dict[str, Output]:
    """The final states, the first layer's attention weights, and the head's outputs."""
    (ids, mask), types = _tokens(inputs, config.vocab_size), None
    if "token_type_ids" in inputs:
        if not config.types:
            raise LabError("a model without types takes no token_type_ids")
        types = token_ids(inputs, "token_type_ids", config.types)
        _alike("token_type_ids", types, ids)
    (out,), weights = _compiled("encoder", config, "encoder", None)(params, ids, mask, types)
    tokens = mask[..., None]
    found = {"last_hidden_state": (out["states"], tokens)}
    found["attention_layer0"] = weights, _between(mask)
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
    return found


def _source(kind: str, config: Any, inputs: Inputs) -> tuple[Array, ...]:
    """The encoder's input: ids and their mask, or the features of audio [b f m]."""
    if kind == "encoder_decoder":
        return _tokens(inputs, config.source_vocab_size or config.vocab_size)
    features = inputs.get("input_features")
    if features is None or features.ndim != 3:
        raise LabError("the inputs have no input_features [batch, bands, frames]")
    return (jnp.asarray(features, jnp.float32).transpose(0, 2, 1),)


def _encoder_decoder(kind: str, config: Any, params: Any, inputs: Inputs) -> dict[str, Output]:
    """Both stacks' states, the encoder's first attention weights, and logits for decoder ids."""
    source = _source(kind, config, inputs)
    mask = source[1] if len(source) > 1 else None
    fed = ["decoder_input_ids"] if "decoder_input_ids" in inputs else []
    target = [token_ids(inputs, name, config.vocab_size) for name in fed]
    memory, weights, states, logits = _both_stacks(kind, config)(params, source, mask, *target)
    found = {"last_hidden_state": (states, None), "logits": (logits, None)} if fed else {}
    found["encoder_last_hidden_state"] = memory, None if mask is None else mask[..., None]
    return found | {"attention_layer0": (weights, None if mask is None else _between(mask))}


def _vision(config: Any, params: Any, inputs: Inputs) -> dict[str, Output]:
    """The states, the first layer's attention weights, and the outputs of pooler and heads."""
    (out,), weights = _compiled("vision", config, "encoder", None)(params, _images(inputs))
    found = {"last_hidden_state": out["hidden"], "attention_layer0": weights}
    if config.pre_logits or config.layer_scale:  # DINOv2 calls the class token's state so
        found["pooler_output"] = out["features"]
    if "logits" in out:
        found["logits"] = out["logits"]
    if "distilled" in out:
        found["distillation_logits"] = out["distilled"]
        found["cls_logits"] = 2 * out["logits"] - out["distilled"]
    return {name: (value, None) for name, value in found.items()}


def _swin(config: Any, params: Any, inputs: Inputs) -> dict[str, Output]:
    """The states of the last stage, their mean, and the logits of the classes."""
    out = _applied("swin", config)(params, _images(inputs))
    names = {"hidden": "last_hidden_state", "features": "pooler_output", "logits": "logits"}
    return {names[name]: (value, None) for name, value in out.items()}


def _detr(config: Any, params: Any, inputs: Inputs) -> dict[str, Output]:
    """The states of the queries, the logits of their classes, and their boxes."""
    images, mask = _images(inputs), inputs.get("pixel_mask")
    real = None if mask is None else jnp.asarray(mask) != 0
    out = _applied("detr", config)(params, images, None, None, real)
    names = {"hidden": "last_hidden_state", "logits": "logits", "boxes": "pred_boxes"}
    return {theirs: (out[ours], None) for ours, theirs in names.items()}


def _two_towers(config: Any, params: Any, inputs: Inputs) -> dict[str, Output]:
    """The vectors of images and texts, and the logits of all their combinations."""
    (ids, mask), images = _tokens(inputs, config.vocab_size), _images(inputs)
    out = jax.device_get(_applied("two_towers", config)(params, images, ids, None, mask))
    logits = out["scale"] * out["image"] @ out["text"].T + out["bias"]
    found = {"image_embeds": out["image"], "text_embeds": out["text"]}
    found |= {"logits_per_image": logits, "logits_per_text": logits.T}
    return {name: (value, None) for name, value in found.items()}


def _search(
    decode: DecodeConfig, special: SpecialIds, pad: int, run: Callable[..., Any], *inputs: Any
) -> Generated:
    """Runs the search from what `run` makes of the inputs: (step, cache, tokens so far)."""

    @jax.jit
    def whole(*inputs):
        step, cache, before = run(*inputs)
        found = search(
            step, cache, before[:, -1], decode, eos_id=special.eos, pad_id=pad,
            max_new_tokens=decode.max_new_tokens, before=before[:, :-1],
        )  # fmt: skip
        return found, before

    found, before = jax.device_get(whole(*inputs))
    tokens = found.tokens[..., : found.lengths.max()]
    before = np.broadcast_to(before[:, None], (*tokens.shape[:2], before.shape[1]))
    tokens = np.concatenate([before, tokens], axis=-1)
    return tokens.reshape(-1, tokens.shape[-1]), found.scores.reshape(-1)


def _continue(
    config: Any, params: Any, inputs: Inputs, decode: DecodeConfig, special: SpecialIds
) -> Generated:
    """Continues each row of `prompt`; the rows have equal lengths and no padding."""
    prompt = token_ids(inputs, "prompt", config.vocab_size)
    model = models.family("decoder").build(config)
    rows, length = prompt.shape[0], prompt.shape[1] + decode.max_new_tokens

    def run(params, prompt):
        variables = {"params": params}
        cache = model.apply(variables, rows, length, method="init_cache")
        if prompt.shape[1] > 1:
            before = prompt[:, :-1]
            _, cache = model.apply(variables, before, None, length, method="prefill")
        step = lambda tokens, cache: model.apply(variables, tokens, cache, method="step")  # noqa: E731
        return step, cache, prompt

    return _search(decode, special, special.pad, run, params, prompt)


def _translate(
    kind: str, config: Any, params: Any, inputs: Inputs, decode: DecodeConfig, special: SpecialIds
) -> Generated:
    """The decoder's output for each source, with the start token in front."""
    source = _source(kind, config, inputs)
    model, length = models.family(kind).build(config), decode.max_new_tokens
    # Their beam search fills rows with the end token if the padding is token 0.
    pad = (special.pad or special.eos) if decode.beam_size > 1 else special.pad

    def run(params, *source):
        variables = {"params": params}
        cache = model.apply(variables, *source, length, method="init_cache")
        step = lambda tokens, cache: model.apply(variables, tokens, cache, method="step")  # noqa: E731
        return step, cache, jnp.full((len(source[0]), 1), special.start, jnp.int32)

    return _search(decode, special, pad, run, params, *source)


def _of_both(kind: str, *inputs: str) -> Runner:
    outputs, generate = partial(_encoder_decoder, kind), partial(_translate, kind)
    return Runner((*inputs, "decoder_input_ids"), outputs, generate)


TEXT = ("input_ids", "attention_mask")
RUNNERS = {  # one for each kind of model
    "decoder": Runner((*TEXT, "prompt"), _decoder, _continue),
    "encoder": Runner((*TEXT, "token_type_ids"), _encoder),
    "encoder_decoder": _of_both("encoder_decoder", *TEXT),
    "whisper": _of_both("whisper", "input_features"),
    "vision": Runner(("pixel_values",), _vision),
    "swin": Runner(("pixel_values",), _swin),
    "detr": Runner(("pixel_values", "pixel_mask"), _detr),
    "two_towers": Runner((*TEXT, "pixel_values"), _two_towers),
}
