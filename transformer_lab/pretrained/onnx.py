"""DINOv2's encoder out of an ONNX file: its arrays are read, nothing of its graph is run.

The file is a message of protocol buffers: pairs of a key, which is a field's number times 8 plus a
wire type, and a value (0: a varint; 1 and 5: 8 and 4 bytes; 2: a length and so many bytes, such as
another message). Exporters call the kernels of linear layers after a counter, `onnx::MatMul_1966`.
What such an array is, the node tells that reads it: its name is the path of its layer,
`/backbone/encoder/layer.0/mlp/fc1/MatMul`.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_lab.errors import LabError, check_file
from transformer_lab.ops.patches import resize_positions
from transformer_lab.pretrained import Pretrained, family
from transformer_lab.pretrained.core import NO_TOKEN, Settings
from transformer_lab.pretrained.generation import SpecialIds
from transformer_lab.pretrained.names import import_params

# Numbers of fields (onnx.proto): the model's graph, and what a graph, a node and an array have.
GRAPH = 7
NODES, ARRAYS, INPUTS = 1, 5, 11
READ, PATH, KIND = 1, 3, 4
DIMENSIONS, TYPE, FLOATS, NAME, BYTES = 1, 2, 4, 8, 9
INPUT_SIZE = (2, 1, 2, 1, 1)  # of an input: type, tensor, shape, each dimension, its number
FLOAT32 = 1
PATCHES = "embeddings.patch_embeddings.projection.weight"
POSITIONS = "embeddings.position_embeddings"
HEAD_DIM = 64  # of DINOv2 in all sizes, which the arrays do not show


def varint(data: memoryview, place: int) -> tuple[int, int]:
    """A whole number of seven bits a byte, the lowest first, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        value, place, shift = value | (byte & 127) << shift, place + 1, shift + 7
        if byte < 128:
            return value, place


def fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """The number of each field and its value, a whole number or the bytes."""
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        if key & 7 == 0:
            value, place = varint(data, place)
        else:
            size, place = varint(data, place) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], place)
            value, place = data[place : place + size], place + size
            if place > len(data):
                raise ValueError("it ends too early")
        yield key >> 3, value


def of(data: memoryview, *numbers: int) -> list[Any]:
    """The values of a field, or of a field of the messages in a field, and so on."""
    found = [value for number, value in fields(data) if number == numbers[0]]
    return found if len(numbers) == 1 else [x for part in found for x in of(part, *numbers[1:])]


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
    """The float32 arrays by name, and the dimensions of the first input that are fixed.

    Kernels have torch's layout [out, in] and name, `backbone.encoder.layer.0.mlp.fc1.weight`; other
    arrays without a name are called after the path and kind of the node, `backbone.x.Concat`.
    Raises: LabError for a file that is damaged or no ONNX."""
    content, names, arrays = memoryview(check_file(path).read_bytes()), {}, {}
    try:
        (graph,) = of(content, GRAPH)
        for node in of(graph, NODES):
            where, kind = (bytes(of(node, number)[0]).decode() for number in (PATH, KIND))
            layer = where.strip("/").rpartition("/")[0].replace("/", ".")
            for name in of(node, READ):
                names[bytes(name)] = layer, kind
        for array in of(graph, ARRAYS):
            if of(array, TYPE) != [FLOAT32]:
                continue
            (raw,), shape = of(array, NAME), []
            for part in of(array, DIMENSIONS):
                shape += [part] if isinstance(part, int) else packed(part)
            data = b"".join(of(array, BYTES) or of(array, FLOATS))
            value, name = np.frombuffer(data, "<f4").reshape(shape), bytes(raw).decode()
            if name.startswith("onnx::") and bytes(raw) in names:
                layer, kind = names[bytes(raw)]
                name = f"{layer}.weight" if kind == "MatMul" else f"{layer}.{kind}"
                value = value.T if kind == "MatMul" else value
            arrays[name] = value
        inputs = of(graph, INPUTS)
        return arrays, tuple(of(inputs[0], *INPUT_SIZE)) if inputs else ()
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise LabError(f"{path}: damaged, or no ONNX file: {error}") from error


def packed(data: memoryview) -> list[int]:
    """Whole numbers one after the other."""
    found, place = [], 0
    while place < len(data):
        value, place = varint(data, place)
        found.append(value)
    return found


def load(file: str | Path) -> Pretrained:
    """The encoder in a file, for images of the size of the file's input.

    The position vectors, which DINOv2 has for 518 x 518 pixels, are resized once, as the graph does
    it for each image. Raises: LabError for a file without such an encoder."""
    path = Path(file)
    arrays, sizes = read_arrays(path)
    if len(found := [name for name in arrays if name.endswith(PATCHES)]) != 1:
        raise LabError(f"{path}: {len(found)} arrays are called {PATCHES}, DINOv2 has one")
    prefix = found[0].removesuffix(PATCHES)
    own = {n.removeprefix(prefix): x for n, x in arrays.items() if n.startswith(prefix)}
    own |= {} if POSITIONS in own else {POSITIONS: _positions(own, path)}
    config, names = family("dinov2").reading(Settings(_settings(own, path), str(path)), own)
    params = import_params(names, own, family("dinov2").shapes(config), str(path))
    if len(sizes) > 2 and sizes[-2:] != config.image_size:
        asked = replace(config, image_size=sizes[-2:])
        table = jnp.asarray(params["positions"]["embedding"])
        table = resize_positions(table, config.grid, asked.grid, 1)
        params["positions"], config = {"embedding": np.asarray(table)}, asked
    left = len(arrays) - sum(name.startswith(prefix) for name in arrays)
    notes = [f"{path}: {left} arrays are not the encoder's and were passed over"] if left else []
    return Pretrained(
        "dinov2", "vision", config, params, None, SpecialIds(*(NO_TOKEN,) * 3), (), tuple(notes)
    )


def _positions(own: dict[str, np.ndarray], path: Path) -> np.ndarray:
    """The position vectors [1, tokens, D], which the exporter stored as two parts."""
    parts = [own.pop(f"embeddings.{kind}", None) for kind in ("Concat", "Reshape")]
    if any(part is None or part.ndim != 3 for part in parts):
        raise LabError(f"{path}: the position vectors of a DINOv2 were not found")
    return np.concatenate(parts, axis=1)


def _settings(own: dict[str, np.ndarray], path: Path) -> dict[str, Any]:
    """Hugging Face's settings, as far as the shapes of the arrays show them."""
    width, channels, *patch = own[PATCHES].shape
    layers = {name.split(".")[2] for name in own if name.startswith("encoder.layer.")}
    side = math.isqrt(own[POSITIONS].shape[1] - 1)
    inner = own.get("encoder.layer.0.mlp.fc1.bias")
    if inner is None or width % HEAD_DIM:
        raise LabError(f"{path}: no feed-forward of a DINOv2, or its width {width} is not in heads")
    return {
        "model_type": "dinov2",
        "hidden_size": width,
        "num_hidden_layers": len(layers),
        "num_attention_heads": width // HEAD_DIM,
        "mlp_ratio": len(inner) / width,
        "num_channels": channels,
        "image_size": [side * size for size in patch],
        "patch_size": patch,
        "qkv_bias": "encoder.layer.0.attention.attention.query.bias" in own,
    }
