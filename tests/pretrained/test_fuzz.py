"""Damaged Hugging Face directories: read, or refused with one line, within 20 seconds and 1 GiB."""

import shutil
from pathlib import Path

import pytest

from tests import fuzz
from transformer_lab import pretrained

FIXTURES = Path(__file__).parents[1] / "fixtures"
DIRECTORIES = (
    "marian_relu", "decoders/gpt2", "decoders/llama", "encoders/bert", "encoder_decoders/t5",
    "vision/vit", "towers/clip", "decoders/mamba2", "decoders/jamba", "encoder_decoders/switch",
)  # fmt: skip


@pytest.mark.parametrize("name", DIRECTORIES)
@pytest.mark.parametrize("count", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_a_damaged_directory_is_read_or_refused_with_one_line(name, count, tmp_path):
    source = FIXTURES / name
    shutil.copytree(source, tmp_path / "model")
    read = lambda: pretrained.load(tmp_path / "model")  # noqa: E731
    read()  # compiles and imports once, before memory is counted
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        path = tmp_path / "model" / file
        if path.exists():
            content = path.read_bytes()
            cases = fuzz.of_bytes(content[:4096], 0, count // 2)
            cases = [(what, made + content[4096:]) for what, made in cases]
            if path.suffix == ".json":
                cases += fuzz.of_json(content, 0, count * 2 if file == "config.json" else count)
            fuzz.check(cases, path, read)
