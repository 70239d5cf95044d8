"""The plan of large runs: devices, days and memory by arithmetic; and which runs train first."""

import pytest

from transformer_lab.commands import sweep
from transformer_lab.models import costs, decoder
from transformer_lab.models.presets import DECODERS
from transformer_lab.sweeps import runner
from transformer_lab.sweeps.estimates import estimate
from transformer_lab.sweeps.experiment import Experiment, Run, runs_of
from transformer_lab.sweeps.states import SETTINGS
from transformer_lab.sweeps.variations import vary
from transformer_lab.training.places import write_json


def test_an_estimate_is_the_arithmetic_of_its_config():
    """Of LLaMA 7B: 12 bytes of weights and moments and 4 of gradients a parameter, 6.7e9 of them,
    are 108 GB: halves of 80 GB hold them on four devices."""
    rows = vary("config", {"llama": "configs/decoder.py:llama_7b"})
    (run,) = runs_of(Experiment("configs/smoke.py", rows))
    text, model = estimate(run), DECODERS["llama_7b"].config
    count = sum(costs.parameter_groups("decoder", model).values())
    assert f"{count:,} parameters, {16 * count / 1e9:,.1f} GB" in text
    tokens = run.settings["steps"] * run.settings["batch.rows"] * run.settings["batch.length"]
    days = decoder.training_flops(model) * tokens / (0.4 * 312e12) / 86_400
    assert f"{tokens:.2g} tokens: {days:,.3g} device-days" in text and tokens > 0.9e12
    assert text.endswith("at least 4 of them")


def test_a_token_of_two_stacks_is_one_of_each():
    """The base model's 50,000 tokens a step are 25,000 pairs of one on either side."""
    (run,) = runs_of(Experiment("configs/transformer_base.py", vary("steps", [100_000])))
    assert "2.5e+09 tokens" in estimate(run) and "one is enough" in estimate(run)


def test_a_measurement_has_no_estimate():
    assert estimate(Run("a", "a", (), {})) == ""


def test_small_runs_take_a_core_each_where_there_is_no_accelerator(monkeypatch):
    monkeypatch.setattr(runner.Path, "glob", lambda *_: iter(()))
    for cores, runs, many in ((2, 5, 2), (16, 5, 5), (64, 99, 8), (0, 5, 1)):
        monkeypatch.setattr(runner, "_cores", lambda cores=cores: list(range(cores)))
        assert runner.default_parallel([None] * runs) == many
    monkeypatch.setattr(runner.Path, "glob", lambda *_: iter(["/dev/nvidia0"]))
    assert runner.default_parallel([None] * 5) == 1


@pytest.mark.parametrize(("flags", "names"), [
    ({}, ["a", "b", "c"]),
    ({"priority": "c|b"}, ["b", "c", "a"]),
    ({"resume_only": True}, ["b"]),
])  # fmt: skip
def test_which_runs_train_and_in_which_order(flags, names, tmp_path, monkeypatch):
    given = {"only": "", "index": None, "priority": "", "resume_only": False} | flags
    monkeypatch.setattr(sweep.flags, "FLAGS", type("Flags", (), given))
    (tmp_path / "b").mkdir()
    write_json(tmp_path / "b" / SETTINGS, {})
    chosen = sweep._chosen([Run(name, name, (), {}) for name in "abc"], tmp_path)
    assert [run.name for run in chosen] == names
