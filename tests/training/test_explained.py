"""What keys mean: the comments of the dataclasses, of which none is missing."""

import re

import pytest

from tests.entry import ROOT
from transformer_lab import models, tasks
from transformer_lab.commands import config as command
from transformer_lab.data.splits import SOURCES
from transformer_lab.kinds import kinds
from transformer_lab.layers.config import CHOICES
from transformer_lab.sweeps.experiment import load_module
from transformer_lab.training import explained
from transformer_lab.training.config import default_config, resolve
from transformer_lab.training.explained import Key, keys


def test_a_key_has_its_value_type_default_and_meaning():
    config = default_config("decoder", "language_modeling")
    config.model.kv_heads, config.optimizer.name = 1, "muon"
    found = {key.name: key for key in keys(resolve(config))}
    meaning = "K; None: as many as heads. 1: multi-query (Shazeer 2019)"
    assert found["model.kv_heads"] == Key("model.kv_heads", 1, None, "int | None", meaning)
    assert str(found["model.kv_heads"]).startswith("model.kv_heads = 1 (int | None, default None):")
    assert found["optimizer.name"].default == "adam"
    assert str(found["mesh.data"]) == "mesh.data = -1 (int): copies of the model"
    assert found["best"].meaning.startswith("The validation score,")  # lines above the field
    assert "seed" in found and "decode.temperature" in found


def test_every_key_there_is_has_a_meaning():
    sections = [models.family(kind).CONFIG() for kind in kinds(models.__name__, "CONFIG")]
    for kind in kinds(tasks.__name__, "SECTIONS"):
        sections += [section() for section in tasks.objective(kind).SECTIONS.values()]
    lacking = {
        (type(section).__name__, key.name)
        for section in sections
        for key in explained.keys_of("", section)
        if not key.meaning
    }
    assert not lacking


def test_the_command_lists_configs_and_shows_the_keys_that_begin_so(monkeypatch, capsys):
    class Flags:
        config = None

    monkeypatch.setattr(command.flags, "FLAGS", Flags())
    command.main([])
    listed = capsys.readouterr().out.splitlines()
    assert any(line.startswith("configs/smoke.py ") for line in listed)
    monkeypatch.setattr(command.cli, "get_config", lambda: Flags.config)
    Flags.config = default_config("decoder", "language_modeling")
    command.main(["model.width", "keep"])
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["keep", "model.width"]
    with pytest.raises(command.LabError, match='model.widht.*did you mean "model.width"'):
        command.main(["model.widht"])


def test_a_name_shows_its_choices_unless_its_meaning_does():
    found = {key.name: key for key in keys(resolve(default_config("decoder", "language_modeling")))}
    assert found["data.source"].choices == tuple(kinds(SOURCES, "def documents"))
    assert found["model.norm"].choices == CHOICES["norm"]
    assert found["optimizer.name"].choices == ()
    made = Key("a", "x", "x", "str", "x or y", ("x", "y"))
    assert made.words == "x or y" and made._replace(meaning="b").words == "b; one of x, y"


def test_the_sites_reference_has_every_key_once_with_its_meaning():
    slugify = pytest.importorskip("markdown.extensions.toc").slugify
    reference = load_module(str(ROOT / "scripts" / "reference.py")).reference()
    heads = re.findall(r"^### (.*)$", reference, re.M)
    assert len(set(heads)) == len(heads) > 80
    links = set(re.findall(r"\(#([\w-]+)\)", reference))
    assert links <= {slugify(head, "-") for head in heads}
    tables = dict(zip(heads, reference.split("\n### ")[1:], strict=True))
    assert "| `steps` | `int` | `1000` | optimizer steps |" in tables["Every run"]
    assert "| `model.width` |" in tables["model: Stack"]
    assert "| `model.width` |" not in tables["model.kind = decoder"]
    assert "[model: Stack](#model-stack)" in tables["model.kind = decoder"]
    assert "| `model.mixer.kind` | `str` | `'attention'` |" in tables["model.mixer: Mixer"]
    assert r"adam \| sgd" in tables["optimizer: Optimizer"]
    assert all(name in tables["data: Pairs"] for name in kinds(SOURCES, "def pairs"))
