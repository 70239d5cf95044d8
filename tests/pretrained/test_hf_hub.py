"""Directories: what is read, what is refused, and that each refusal names its file."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from transformer_lab.errors import LabError
from transformer_lab.pretrained.hub import read_directory, read_tensors, write_directory

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([1.5, -2.0], np.float16),
    "c": np.array([0.15625, 3.0], ml_dtypes.bfloat16),
}


def write(path, config='{"model_type": "marian"}', tensors=TENSORS):
    (path / "config.json").write_text(config)
    save_file(tensors, path / "model.safetensors")
    return path


def write_shards(path, weight_map=None):
    write(path, tensors={"x": TENSORS["a"]})
    (path / "model.safetensors").rename(path / "one.safetensors")
    save_file({"y": TENSORS["b"]}, path / "two.safetensors")
    weight_map = weight_map or {"x": "one.safetensors", "y": "two.safetensors"}
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def refusal(path):
    with pytest.raises(LabError) as error:
        read_directory(path)
    text = str(error.value)
    assert "\n" not in text
    return text


def test_tensors_and_settings_come_back_as_written(tmp_path):
    found = read_directory(write(tmp_path))
    assert found.config == {"model_type": "marian"} and found.generation is None
    assert found.tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert found.tensors[name].dtype == value.dtype
        np.testing.assert_array_equal(found.tensors[name], value)


def test_shards_are_joined(tmp_path):
    found = read_tensors(write_shards(tmp_path))
    np.testing.assert_array_equal(found["x"], TENSORS["a"])
    np.testing.assert_array_equal(found["y"], TENSORS["b"])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", "not valid JSON"),
        ("config.json", b"[1]", "needs an object"),
        ("config.json", b'{"a": "\xff"}', "not valid JSON"),
        ("config.json", None, "no such file"),
        ("generation_config.json", b"nonsense", "not valid JSON"),
        ("model.safetensors", b"", "damaged"),
        ("model.safetensors", b"\xff" * 40, "damaged"),
        ("model.safetensors", None, "holds neither model.safetensors nor"),
    ],
)
def test_a_bad_file_is_named(tmp_path, file, content, message):
    write(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    text = refusal(tmp_path)
    assert file in text and message in text and str(tmp_path) in text


def test_truncated_weights_are_refused_at_every_length(tmp_path):
    whole = (write(tmp_path) / "model.safetensors").read_bytes()
    for length in (1, 7, 9, len(whole) // 2, len(whole) - 1):
        (tmp_path / "model.safetensors").write_bytes(whole[:length])
        assert "model.safetensors: damaged" in refusal(tmp_path)


def test_a_type_that_numpy_lacks_is_named(tmp_path):
    header = json.dumps({"w": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    write(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"ab")
    assert "w has the type F8_E4M3" in refusal(tmp_path)


def test_a_missing_directory_and_pickled_weights_are_refused(tmp_path):
    assert "no such directory" in refusal(tmp_path / "none")
    (write(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "convert pytorch_model.bin to safetensors" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"x": "one.safetensors", "y": "three.safetensors"}, "three.safetensors: no such file"),
        ({"x": "one.safetensors", "y": "one.safetensors"}, "missing y; unexpected none"),
        ({"x": "two.safetensors"}, "two.safetensors: differs"),
        ({"x": "../one.safetensors"}, "files beside it"),
        ({"x": 3}, "files beside it"),
    ],
)
def test_an_index_that_disagrees_with_its_shards_is_refused(tmp_path, weight_map, message):
    assert message in refusal(write_shards(tmp_path, weight_map))


def test_writing_round_trips_and_never_overwrites(tmp_path):
    tensors = {"t": TENSORS["a"].T, "s": np.float32(2.0).reshape(1)}  # one is not contiguous
    write_directory(tmp_path / "new" / "model", {"model_type": "x"}, tensors, {"num_beams": 2})
    found = read_directory(tmp_path / "new" / "model")
    assert found.config == {"model_type": "x"} and found.generation == {"num_beams": 2}
    np.testing.assert_array_equal(found.tensors["t"], TENSORS["a"].T)
    with pytest.raises(LabError, match="holds config.json already"):
        write_directory(tmp_path / "new" / "model", {}, tensors)
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="cannot be written"):
        write_directory(tmp_path / "file" / "model", {}, tensors)


def test_a_tensor_of_sixty_five_dimensions_is_named(tmp_path):
    header = {"deep": {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(4)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    assert "model.safetensors: deep cannot be read: maximum supported dimension" in refusal(
        tmp_path
    )


def test_an_index_that_names_a_file_of_five_thousand_letters_is_one_line(tmp_path):
    write_shards(tmp_path, {"x": "w" * 5000})
    assert "File name too long" in refusal(tmp_path)
