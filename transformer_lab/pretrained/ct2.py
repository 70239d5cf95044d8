"""Whisper in CTranslate2's format: model.bin, config.json and tokenizer.json.

Little-endian: version (uint32), the model's name, its revision (uint32), the number of variables
(uint32) and each of them; then the number of aliases (uint32) and two names of each. A text is a
uint16 of its length with the zero byte at its end, and the bytes. A variable is its name, its rank
(uint8) and dimensions (uint32 each), its type (uint8, an index in TYPES), the number of bytes
(uint32) and the bytes. Weights of whole numbers have a `NAME_scale` beside them, by which each row
was multiplied.
"""

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.errors import LabError, check_file, fits, read_json
from transformer_lab.models.whisper import WhisperConfig
from transformer_lab.pretrained import Pretrained, family
from transformer_lab.pretrained.generation import SpecialIds
from transformer_lab.pretrained.hub import CONFIG
from transformer_lab.pretrained.names import (
    TRANSPOSE,
    NameMap,
    Rule,
    Transform,
    import_params,
)

WEIGHTS, NAME = "model.bin", "WhisperSpec"
TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16, ml_dtypes.bfloat16)
ACTIVATIONS = ("relu", "gelu_tanh", "silu", "gelu", "gelu_quick", "tanh")
VERSIONS = range(4, 7)  # versions with the format above
ENGLISH = 51864  # vocabulary of English models; multilingual ones have more
END = 50256  # the end token of English models; the others' is one higher
NEW_TOKENS = 224  # of a window at most (Radford 2023): the other half is for the text before it


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a model.bin by name, aliases included; quantised weights as float32.

    Raises: LabError for a file that is damaged, or not of this format or model."""
    content, place = check_file(path).read_bytes(), 0

    def number(kind: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(f"<{kind}", content, place)
        place += struct.calcsize(kind)
        return value

    def take(count: int) -> bytes:
        nonlocal place
        if place + count > len(content):
            raise ValueError("it ends too early")
        place += count
        return content[place - count : place]

    text = lambda: take(number("H")).rstrip(b"\0").decode()  # noqa: E731
    try:
        if (version := number("I")) not in VERSIONS:
            raise ValueError(f"its version is {version}, versions 4 to 6 are read")
        if (name := text()) != NAME:
            raise ValueError(f"it holds a {name}, only {NAME} is read")
        number("I")
        found = {}
        for _ in range(number("I")):
            name, shape = text(), tuple(number("I") for _ in range(number("B")))
            kind, value = TYPES[number("B")], take(number("I"))
            found[name] = np.frombuffer(value, kind).reshape(shape)
        aliases = {text(): text() for _ in range(number("I"))}
        whole, scales = _whole(found)
        return whole | {alias: whole[n] for alias, n in aliases.items() if n not in scales}
    except (struct.error, ValueError, IndexError, KeyError) as error:
        raise LabError(f"{path}: damaged, or no {WEIGHTS} of CTranslate2: {error}") from error


def _whole(found: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], set[str]]:
    """The variables, with quantised weights divided by their scales, and the scales' names."""
    scales = {name: value for name, value in found.items() if name.endswith("_scale")}
    out = {name: value for name, value in found.items() if name not in scales}
    for name, scale in scales.items():
        weight = out[name.removesuffix("_scale")]
        rows = scale.astype(np.float32).reshape(-1, *[1] * (weight.ndim - 1))
        out[name.removesuffix("_scale")] = weight.astype(np.float32) / rows
    return out, {*scales}


def load(directory: str | Path) -> Pretrained:
    """The model, its parameters in float32, and the tokens that it must not generate.

    Raises: LabError that says what is wrong with the files."""
    path = Path(directory)
    variables, settings = read_variables(path / WEIGHTS), read_json(path / CONFIG)
    tensors = {name: x for name, x in variables.items() if x.ndim}
    try:
        config = _config({name: x.item() for name, x in variables.items() if not x.ndim}, tensors)
    except (KeyError, IndexError) as error:
        raise LabError(f"{path / WEIGHTS}: {error} is missing, or has no such value") from error
    shapes = family("whisper").shapes(config)
    params = import_params(_names(config), tensors, shapes, str(path / WEIGHTS))
    banned = {}
    for ours, theirs in (("banned", "suppress_ids"), ("first_banned", "suppress_ids_begin")):
        ids = settings.get(theirs, [])
        if not fits(ids, list[int]) or not all(0 <= i < config.vocab_size for i in ids):
            raise LabError(f"{path / CONFIG}: {theirs} must be tokens below {config.vocab_size}")
        banned[f"{ours}_tokens"] = tuple(sorted({*ids}))
    heads = settings.get("alignment_heads", [])
    if not fits(heads, list[list[int]]):
        raise LabError(f"{path / CONFIG}: alignment_heads must be pairs of a layer and a head")
    new = min(NEW_TOKENS, config.max_length // 2)
    more = {"max_new_tokens": new, "alignment_heads": tuple(map(tuple, heads))}
    decode = DecodeConfig(length_penalty="power", alpha=1.0, **more, **banned)
    end = END + (config.vocab_size > ENGLISH)
    special = SpecialIds(pad=end, eos=end, start=end + 1)
    return Pretrained("whisper", "whisper", config, params, decode, special)


def _config(scalars: dict[str, Any], tensors: dict[str, np.ndarray]) -> WhisperConfig:
    """Our config; sizes follow from the shapes of the variables and two numbers of heads."""
    table, window = tensors["decoder/embeddings/weight"], tensors["encoder/conv1/weight"]
    positions = "position_encodings/encodings"
    sizes: dict[str, Any] = {"vocab_size": table.shape[0], "width": table.shape[1]}
    sizes |= {"bins": window.shape[1], "frames": 2 * tensors[f"encoder/{positions}"].shape[0]}
    sizes |= {"max_length": tensors[f"decoder/{positions}"].shape[0]}
    for stack, prefix in (("encoder", ""), ("decoder", "decoder_")):
        heads = scalars[f"{stack}/num_heads"]
        up = tensors[f"{stack}/layer_0/ffn/linear_0/weight"]
        layers = {name.split("/")[1] for name in tensors if name.startswith(f"{stack}/layer_")}
        sizes |= {
            f"{prefix}layers": len(layers - {"layer_norm"}),
            f"{prefix}heads": heads,
            f"{prefix}head_dim": sizes["width"] // max(heads, 1),
            f"{prefix}feed_forward_width": up.shape[0],
        }
    sizes["activation"] = ACTIVATIONS[scalars.get("decoder/activation", 3)]
    return WhisperConfig(**sizes)


JOINED = Transform(  # our kernels, stacked along the outputs
    lambda *kernels: np.concatenate([kernel.T for kernel in kernels]),
    lambda x: [part.T for part in np.split(x, 3)],
)
PAIR = Transform(JOINED.to_theirs, lambda x: [part.T for part in np.split(x, 2)])
# Biases of query, key and value in one tensor; the key's is zero.
AROUND = Transform(
    lambda query, value: np.concatenate([query, np.zeros_like(query), value]),
    lambda x: np.split(x, 3)[::2],
)
BEHIND = Transform(
    lambda value: np.concatenate([np.zeros_like(value), value]), lambda x: [np.split(x, 2)[1]]
)


def _names(config: WhisperConfig) -> NameMap:
    """The name map; linear_0 of self-attention holds our query, key and value kernels."""
    rules = [
        Rule("frame_positions", "encoder/position_encodings/encodings"),
        Rule("target_embedding/embedding", "decoder/embeddings/weight"),
        Rule("target_positions/embedding", "decoder/position_encodings/encodings"),
    ]

    def dense(ours: str, theirs: str) -> None:
        rules.append(Rule(f"{ours}/kernel", f"{theirs}/weight", TRANSPOSE))
        rules.append(Rule(f"{ours}/bias", f"{theirs}/bias"))

    def norm(ours: str, theirs: str) -> None:
        rules.append(Rule(f"{ours}/scale", f"{theirs}/gamma"))
        rules.append(Rule(f"{ours}/bias", f"{theirs}/beta"))

    for number in (1, 2):
        dense(f"convolution_{number}", f"encoder/conv{number}")
    for stack in ("encoder", "decoder"):
        layer = f"{stack}/layer_{{i}}"
        norm(f"{stack}/final_norm", f"{stack}/layer_norm")
        norm(f"{layer}/attention_norm", f"{layer}/self_attention/layer_norm")
        norm(f"{layer}/feed_forward_norm", f"{layer}/ffn/layer_norm")
        for number, part in enumerate(("up", "down")):
            dense(f"{layer}/feed_forward/{part}", f"{layer}/ffn/linear_{number}")
        own, theirs = f"{layer}/attention", f"{layer}/self_attention"
        kernels = tuple(f"{own}/{part}/kernel" for part in ("query", "key", "value"))
        biases = f"{own}/query/bias", f"{own}/value/bias"
        rules.append(Rule(kernels, f"{theirs}/linear_0/weight", JOINED))
        rules.append(Rule(biases, f"{theirs}/linear_0/bias", AROUND))
        dense(f"{own}/out", f"{theirs}/linear_1")
    cross, theirs = "decoder/layer_{i}/cross_attention", "decoder/layer_{i}/attention"
    norm(f"{cross}_norm", f"{theirs}/layer_norm")
    dense(f"{cross}/query", f"{theirs}/linear_0")
    kernels = f"{cross}/key/kernel", f"{cross}/value/kernel"
    rules.append(Rule(kernels, f"{theirs}/linear_1/weight", PAIR))
    rules.append(Rule(f"{cross}/value/bias", f"{theirs}/linear_1/bias", BEHIND))
    dense(f"{cross}/out", f"{theirs}/linear_2")
    head = "decoder/projection/weight"
    return NameMap(tuple(rules), {head: "decoder/embeddings/weight"})
