"""CTranslate2's format, written here by its description, and files that are damaged."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest

from tests.pretrained.fixtures import load
from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained import ct2
from transformer_lab.pretrained.names import export_params

TYPES = ["float32", "int8", "int16", "int32", "float16", "bfloat16"]


def text(name):
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


def variable(name, value):
    kind = TYPES.index(value.dtype.name)
    head = text(name) + struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape)
    return head + struct.pack("<BI", kind, value.nbytes) + value.tobytes()


def written(variables, name="WhisperSpec", version=6):
    parts = [variable(key, value) for key, value in variables.items()]
    head = struct.pack("<I", version) + text(name) + struct.pack("<II", 3, len(parts))
    alias = text("decoder/projection/weight") + text("decoder/embeddings/weight")
    return head + b"".join(parts) + struct.pack("<I", 1) + alias


@pytest.fixture(scope="module")
def model():
    return load("whisper")


@pytest.fixture(scope="module")
def variables(model):
    shapes = pretrained.family("whisper").shapes(model.config)
    found = export_params(ct2._names(model.config), model.params, shapes)
    scalars = {"encoder/num_heads": 3, "decoder/num_heads": 2}
    found |= {name: np.array(value, np.int16) for name, value in scalars.items()}
    return found | {"decoder/activation": np.array(3, np.int8)}


def save(folder, variables, settings=None, **more):
    (folder / "model.bin").write_bytes(written(variables, **more))
    settings = {"suppress_ids": [9, 3], "suppress_ids_begin": [7]} if settings is None else settings
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def as_type(variables, name):
    """The weights in another type; those of whole numbers with the scale of each row."""
    found = {}
    for key, value in variables.items():
        if value.ndim < 2 or key.endswith("encodings"):
            found[key] = value
        elif name.startswith("int"):
            most = np.abs(value).max(axis=tuple(range(1, value.ndim)))
            scale = (np.iinfo(name).max / most).astype(np.float32)
            rows = scale.reshape(-1, *[1] * (value.ndim - 1))
            found |= {key: np.rint(value * rows).astype(name), f"{key}_scale": scale}
        else:
            found[key] = value.astype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    return found


@pytest.mark.parametrize(
    ("name", "error"),
    [("float32", 0), ("float16", 5e-4), ("bfloat16", 4e-3), ("int8", 4e-3), ("int16", 2e-5)],
)
def test_a_model_comes_back_up_to_the_rounding_of_its_type(tmp_path, model, variables, name, error):
    found = ct2.load(save(tmp_path, as_type(variables, name)))
    assert found.config == model.config
    assert found.decode.banned_tokens == (3, 9) and found.decode.first_banned_tokens == (7,)
    assert found.decode.max_new_tokens == 8
    for stack in ("encoder", "decoder"):
        for part, kernel in model.params[stack]["layer_0"]["attention"].items():
            want, got = (
                kernel["kernel"],
                found.params[stack]["layer_0"]["attention"][part]["kernel"],
            )
            assert np.abs(got - want).max() <= error * np.abs(want).max()
    table = found.params["target_embedding"]["embedding"]
    np.testing.assert_allclose(table, model.params["target_embedding"]["embedding"], atol=2 * error)


def refusal(folder):
    with pytest.raises(LabError) as error:
        ct2.load(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_damaged_or_another_thing_is_one_line_that_names_the_file(tmp_path, variables):
    save(tmp_path, variables)
    whole = (tmp_path / "model.bin").read_bytes()
    for size in (0, 3, 9, 40, len(whole) // 2, len(whole) - 1):
        (tmp_path / "model.bin").write_bytes(whole[:size])
        assert "model.bin: damaged" in refusal(tmp_path)
    assert "version is 9" in refusal(save(tmp_path, variables, version=9))
    assert "holds a MarianSpec" in refusal(save(tmp_path, variables, name="MarianSpec"))
    lost = {key: value for key, value in variables.items() if "ffn/linear_1" not in key}
    assert "missing: " in refusal(save(tmp_path, lost))
    lost = {key: value for key, value in variables.items() if "num_heads" not in key}
    assert "num_heads" in refusal(save(tmp_path, lost))
    assert "unexpected: more" in refusal(save(tmp_path, variables | {"more": np.ones(2)}))
    assert "suppress_ids" in refusal(save(tmp_path, variables, {"suppress_ids": [53]}))
