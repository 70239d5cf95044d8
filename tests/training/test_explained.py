"""What keys mean: the comments of the dataclasses, of which none is missing."""

import pytest

from transformer_lab import models, tasks
from transformer_lab.commands import config as command
from transformer_lab.kinds import kinds
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
        for key in explained._keys("", section)
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
