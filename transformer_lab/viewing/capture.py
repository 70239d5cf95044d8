"""Captures the attention weights of a model on one input, with the tokens that they connect."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from transformer_lab.errors import LabError
from transformer_lab.ops.spectrograms import RATE, log_mel


class Inputs(NamedTuple):
    """The input whose attention is shown; `extend` adds the model's own continuation of a text."""

    text: str | None = None
    text_b: str | None = None
    image: str | None = None  # an image file
    audio: str | None = None  # an audio file
    extend: bool = False
    words: bool = False  # whether pieces are joined to words: see `text_map`


class Map(NamedTuple):
    """Attention weights of all layers and heads, in which each of `rows` attends to `columns`."""

    weights: Float[np.ndarray, "layers heads t s"]
    rows: list[str]
    columns: list[str]
    picture: UInt8[np.ndarray, "height width 3"] | None = None
    grid: tuple[int, int] | None = None  # patches down and across; they are the last rows, columns
    # Seconds of a column, where columns are frames of sound; the picture is their spectrogram.
    seconds: float | None = None


Maps = dict[str, Map]
Reader = Callable[[Any, Any, Inputs, Any], Maps]


def capture(task: Any, params: Any, inputs: Inputs, place: Any = None) -> Maps:
    """The attention maps of a task's model on an input, by name; `place` is the trainer's.

    A model family's file names the function that reads it: `VIEW`, a key of `READERS`. Raises:
    LabError for a family without one, or an input that it does not read.
    """
    family, view = task.family.__name__.rpartition(".")[2], vars(task.family).get("VIEW")
    if view is None:
        raise LabError(f'a model of kind "{family}" has no attention to look at')
    return READERS[view](task, params, inputs, place)


def read_encoder(task: Any, params: Any, inputs: Inputs, place: Any) -> Maps:
    """Self-attention over the text as the task encodes it; "[MASK]" in it is a masked word."""
    tok = task.tokenizer
    if hasattr(task, "encode_words"):
        ids, _ = task.encode_words(_text(inputs).split())
    else:
        mask = task.masker.mask_id if hasattr(task, "masker") else None
        parts = [_text(inputs)] if mask is None else _text(inputs).split("[MASK]")
        first = [i for part in parts for i in (mask, *tok.encode(part))][1:]
        second = None if inputs.text_b is None else tok.encode(inputs.text_b)
        ids = task.encode(first, second)
    ends = np.equal(ids, tok.eos_id)
    tokens, types = _row(ids), None
    if task.model_config.types > 1:  # as in training: type 1 after the first end token
        types = _row(np.minimum(np.cumsum(ends) - ends, 1).tolist())
    found = captured(task.model, params, tokens, None, types)
    return {"self-attention": text_map(tok, stacked(found["encoder"])[0], ids, ids, inputs.words)}


def read_decoder(task: Any, params: Any, inputs: Inputs, place: Any) -> Maps:
    """Self-attention over the text, or over the text and the model's continuation."""
    if inputs.text_b is not None or not hasattr(task, "prompt_ids"):
        raise LabError("a decoder is looked at as it reads one text: write it all into --text")
    prompt = task.prompt_ids(_text(inputs))
    ids = prompt
    if inputs.extend:
        ids = prompt + task.generator(place)(params, [prompt])[0][0].ids
    weights = decoder_weights(task, params, _row(ids), len(prompt))[0]
    return {"self-attention": text_map(task.tokenizer, weights, ids, ids, inputs.words)}


def decoder_weights(
    task: Any, params: Any, tokens: Int[Array, "b t"], prompt: int
) -> Float[np.ndarray, "b layers heads t t"]:
    """The weights for batches of tokens; a prefix model sees the first `prompt` as prefix."""
    given = {}
    if task.model.reads_prefix:
        given["prefix"] = jnp.broadcast_to(jnp.arange(tokens.shape[1]) < prompt, tokens.shape)
    return stacked(captured(task.model, params, tokens, **given)["decoder"])


def read_encoder_decoder(task: Any, params: Any, inputs: Inputs, place: Any) -> Maps:
    """Cross- and self-attention of a source and its target: the second text, or the model's output.

    A row of the cross-attention is the token that is written (Bahdanau 2015, figure 3); one of the
    decoder's self-attention is the token that is read, which is the one before.
    """
    found, source, written, read = _translated(task, params, inputs, place)
    view = lambda *what: text_map(task.tokenizer, *what, inputs.words)  # noqa: E731
    cross = stacked(found["decoder"], "cross_attention")[0]
    return {
        "cross-attention": view(cross, written, source),
        "encoder self-attention": view(stacked(found["encoder"])[0], source, source),
        "decoder self-attention": view(stacked(found["decoder"])[0], read, read),
    }


def read_decoder_seq2seq(task: Any, params: Any, inputs: Inputs, place: Any) -> Maps:
    """Self-attention over source and target, which this model reads as one sequence."""
    found, source, _, read = _translated(task, params, inputs, place)
    weights, both = stacked(found["decoder"]["decoder"])[0], source + read
    return {"self-attention": text_map(task.tokenizer, weights, both, both, inputs.words)}


def read_recurrent(task: Any, params: Any, inputs: Inputs, place: Any) -> Maps:
    """The alignment of each written token to the source, as a single head of a single layer."""
    if task.model_config.attention == "none":
        raise LabError('model.attention = "none": this model has no attention to look at')
    found, source, written, _ = _translated(task, params, inputs, place)
    weights = np.asarray(found["weights"][0], np.float32)
    return {"alignment": text_map(task.tokenizer, weights, written, source, inputs.words)}


def _translated(task, params, inputs, place):
    """The intermediates, and the ids of the source, the target and what the decoder reads."""
    tok = task.tokenizer
    source = task.encode(_text(inputs))
    if inputs.text_b is None:
        decoder = task.decoder(place, rows=1)
        target = [*decoder({"params": params}, [source])[0][0].ids, tok.eos_id]
        room = next((s.new_tokens for s in decoder.shapes if s.source >= len(source)), None)
        target = target[:room]  # an output that reached the limit has no end token
    else:
        target = task.encode(inputs.text_b)
    read = [tok.bos_id, *target[:-1]]
    ids = _row(source)
    found = captured(task.model, params, ids, jnp.ones(ids.shape, bool), _row(read))
    return found, source, target, read


def read_vision(task: Any, params: Any, inputs: Inputs, place: Any) -> Maps:
    """Self-attention between the patches of an image and the tokens before them."""
    picture = task.read(_image(inputs))
    images = jnp.asarray(task.normalise(picture[None]))
    found = captured(task.model, params, images)
    return {"patches": image_map(found["encoder"], picture, task.model_config.grid)}


def read_two_towers(task: Any, params: Any, inputs: Inputs, place: Any) -> Maps:
    """Self-attention in the image tower, the text tower or both, as inputs are given."""
    if inputs.image is not None and task.model_config.image_kind == "cnn":
        raise LabError("no attention over patches to see of a residual net: give --text=TEXT")
    maps = {}
    run = lambda method, x: captured(task.model, params, x, method=method)  # noqa: E731
    if inputs.image is not None or inputs.text is None:
        picture = task.read_images([_image(inputs._replace(text=None))])
        found = run("encode_images", task.pixels(jnp.asarray(picture)))["image"]["encoder"]
        maps["image tower"] = image_map(found, picture[0], task.model_config.image.grid)
    if inputs.text is not None:
        encoded = task.encode_texts([inputs.text])
        ids = encoded["tokens"][0, : encoded["tokens_mask"].sum()].tolist()
        found = run("encode_texts", _row(ids))["text"]["decoder"]
        maps["text tower"] = text_map(task.tokenizer, stacked(found)[0], ids, ids, inputs.words)
    return maps


def read_whisper(task: Any, params: Any, inputs: Inputs, place: Any) -> Maps:
    """Attention to the first window of an audio file, from its transcript or the second text.

    A row is the token that is written. The first map holds the heads that times are taken from,
    with the second in which each token begins by their alignment."""
    if inputs.audio is None or inputs.text is not None or inputs.image is not None:
        raise LabError("this model hears: give --audio=FILE and no --text or --image")
    reader, given = task.transcriber(word_times=True), {"params": params}
    samples = task.read(inputs.audio)
    heard = reader.hear(given, samples)
    language = reader.config.language or reader.language_of(given, heard)
    if inputs.text_b is None:
        ids = reader.texts(reader.window(given, heard, language=language).ids)
    else:
        ids = task.target_of(inputs.text_b)[:-1]
    prompt = reader.marks.prompt(language, reader.config.task, times=False)
    written, lead = [*ids, task.tokenizer.eos_id], len(prompt)
    found = captured(task.model, params, _row([*prompt, *written]), heard, method="step")["decoder"]
    aligner, length = reader.aligner, len(samples) / RATE
    cross = stacked(found, "cross_attention")[0][..., : aligner.frames(length)]
    chosen = np.stack([cross[layer, head] for layer, head in aligner.heads])
    rows = [task.tokenizer.piece(i) for i in written]
    starts = aligner.starts(chosen, lead, length)
    timed = [f"{row} {start:.2f} s" for row, start in zip(rows, starts, strict=True)]
    columns = [f"{i * aligner.step:.2f} s" for i in range(cross.shape[-1])]
    bands = np.asarray(log_mel(jnp.asarray(samples[None]), task.model_config.bins))[0]
    more = {"columns": columns, "picture": spectrogram(bands), "seconds": aligner.step}
    own, read = stacked(found)[0][..., : len(prompt) + len(written)], [*prompt, *written]
    return {
        "alignment": Map(chosen[None, :, lead - 1 : -1], timed, **more),
        "cross-attention": Map(cross[:, :, lead - 1 : -1], rows, **more),
        "decoder self-attention": text_map(task.tokenizer, own, read, read, inputs.words),
    }


def spectrogram(bands: Float[np.ndarray, "frames bins"]) -> UInt8[np.ndarray, "bins frames 3"]:
    """A picture of a spectrogram: time from left to right, low bands below, loud ones dark."""
    shares = (bands - bands.min()) / max(float(np.ptp(bands)), 1e-9)
    grey = np.rint(255 * (1 - shares)).astype(np.uint8).T[::-1]
    return np.repeat(grey[..., None], 3, axis=-1)


def read_detr(task: Any, params: Any, inputs: Inputs, place: Any) -> Maps:
    """Attention of the queries that found an object to the image, and of its places to each other.

    A query is named by its class and score; if none has a score of 0.5, the surest is shown."""
    picture = task.read(_image(inputs))
    images = jnp.asarray(task.normalise(picture[None]))
    found = captured(task.model, params, images)
    out = jax.jit(task.model.apply)({"params": params}, images)
    chances = np.asarray(jax.nn.softmax(out["logits"][0]))[:, :-1]
    best = chances.max(axis=-1)
    order = np.argsort(-best)[: max(1, int((best >= 0.5).sum()))]
    names = [f"{task.labels[chances[i].argmax()]} {best[i]:.2f}" for i in order]
    sides: dict[str, dict] = {"encoder": {}, "decoder": {}}
    for name, layer in found.items():
        side, _, number = name.partition("_")
        if side in sides and number.isdecimal():
            sides[side][f"layer_{number}"] = layer
    cross = stacked(sides["decoder"], "cross_attention")[0][:, :, order]
    grid = task.model_config.backbone.map_size(picture.shape[:2])
    places = [f"place {row},{column}" for row, column in np.ndindex(grid)]
    return {
        "cross-attention": Map(cross, names, places, picture, grid),
        "encoder self-attention": image_map(sides["encoder"], picture, grid),
    }


READERS: dict[str, Reader] = {
    "detr": read_detr,
    "encoder": read_encoder,
    "decoder": read_decoder,
    "encoder_decoder": read_encoder_decoder,
    "decoder_seq2seq": read_decoder_seq2seq,
    "recurrent_seq2seq": read_recurrent,
    "vision": read_vision,
    "two_towers": read_two_towers,
    "whisper": read_whisper,
}


def captured(model: Any, params: Any, *inputs: Any, **given: Any) -> dict[str, Any]:
    """Runs the model and returns the arrays that it stores as intermediates."""
    call = lambda params: model.apply(  # noqa: E731
        {"params": params}, *inputs, mutable=["intermediates"], **given
    )[1]
    return jax.jit(call)(params)["intermediates"]


def stacked(
    stack: dict[str, Any], kind: str = "attention"
) -> Float[np.ndarray, "b layers heads t s"]:
    """The weights of all layers of a stack that attend, in order. Raises: LabError if none does."""
    numbers = sorted(int(name[6:]) for name in stack if name.startswith("layer_"))
    layers = [stack[f"layer_{i}"] for i in numbers]
    found = [layer[kind]["weights"][0] for layer in layers if kind in layer]
    if not found:
        raise LabError("no layer of this model attends: there is nothing to look at")
    return np.stack([np.asarray(w, np.float32) for w in found], axis=1)


def text_map(
    tokenizer: Any,
    weights: Float[np.ndarray, "layers heads t s"],
    rows: list[int],
    columns: list[int],
    words: bool,
) -> Map:
    """The map between two sequences of token ids, or between their words.

    A word attends as its pieces do on average, and is attended to as all of them together (Clark
    2019, section 4.1), so that the weights of each word still sum to 1.
    """
    if not words:
        return Map(weights, *([tokenizer.piece(i) for i in ids] for ids in (rows, columns)))
    (t, readers), (s, read) = (_words(tokenizer, ids) for ids in (rows, columns))
    mean = t / t.sum(axis=1, keepdims=True)
    return Map(mean @ weights @ s.T, readers, read)


def _words(tokenizer, ids):
    """Which pieces belong to which word, as 0 or 1 [words, pieces], and the words. A special token
    is a word of its own."""
    owners, names, start, words, seen = [], [], 0, 0, ""
    for i, token in enumerate(ids):
        if token in tokenizer.special_ids:
            names.append(tokenizer.piece(token))
            start, words, seen = i + 1, 0, ""
        else:  # words of the text since the last special token; a space begins a word
            text = tokenizer.decode(ids[start : i + 1]).split()
            count = len(text) + ("".join(text) == seen)
            names += [""] * (count > words)
            names[-1] = text[-1] if count == len(text) else ""
            words, seen = count, "".join(text)
        owners.append(len(names) - 1)
    return np.equal.outer(np.arange(len(names)), owners).astype(np.float32), names


def image_map(
    stack: dict[str, Any], picture: UInt8[np.ndarray, "height width _"], grid: tuple[int, int]
) -> Map:
    """The map of a stack that reads a picture's patches, row by row, after other tokens."""
    weights = stacked(stack)[0]
    extra = weights.shape[-1] - grid[0] * grid[1]
    tokens = ["[CLS]", *(f"[{i}]" for i in range(1, extra))][:extra]
    picture = np.broadcast_to(picture, (*picture.shape[:2], 3))  # grey as RGB
    tokens += [f"patch {row},{column}" for row, column in np.ndindex(grid)]
    return Map(weights, tokens, tokens, picture, grid)


def _text(inputs: Inputs) -> str:
    if inputs.image is not None or inputs.audio is not None:
        raise LabError("this model reads text: give --text=TEXT and no --image or --audio")
    if inputs.text is None:
        raise LabError("--text=TEXT is missing: what the model reads")
    return inputs.text


def _image(inputs: Inputs) -> str:
    if inputs.text is not None or inputs.text_b is not None:
        raise LabError("this model reads an image: give --image=FILE and no --text")
    if inputs.image is None:
        raise LabError("--image=FILE is missing: what the model sees")
    return inputs.image


def _row(ids: list[int]) -> jax.Array:
    return jnp.asarray([ids], jnp.int32)
