"""The attend command: its files hold the model's weights, its mistakes are one line."""

import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.test_entry_points import command
from tests.tiny import tiny_config
from tests.viewing.test_page import decoded, embedded
from transformer_lab.training import runs
from transformer_lab.viewing.capture import Inputs, capture


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    config = tiny_config(steps=2)
    config.mesh.data = -1
    runs.run(config, path)
    return path


def test_the_page_the_picture_and_the_table_are_of_the_runs_weights(workdir, tmp_path):
    page, png = tmp_path / "a.html", tmp_path / "a.png"
    done = command(
        "attend", f"--workdir={workdir}", "--text=big moon", "--text_b=moon", "--heads",
        f"--output={page}", f"--png={png}", "--layer=0", "--head=1", "--map=encoder self-attention",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    trainer, params = runs.open_run(ConfigDict(runs.stored_config(workdir)), workdir)
    maps = capture(trainer.task, params, Inputs("big moon", "moon"), trainer.place)
    kinds = embedded(page.read_text(encoding="utf-8"))["maps"]
    assert [kind["name"] for kind in kinds] == list(maps)
    for kind, found in zip(kinds, maps.values(), strict=True):
        assert (kind["rows"], kind["columns"]) == (found.rows, found.columns)
        np.testing.assert_allclose(decoded(kind), found.weights, atol=2e-5)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert done.stdout.decode().count("encoder self-attention") == 2  # its heads


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--text=a"], "say what to make: --output=FILE.html, --png=FILE.png or --heads"),
        (["a", "--heads"], '"a" is no flag: write --text="a"'),
        (["--text=a", "--png=P", "--head=2"], "--head=2: cross-attention has heads 0 to 1"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(arguments, words, workdir, tmp_path):
    arguments = [a.replace("=P", f"={tmp_path / 'a.png'}") for a in arguments]
    done = command("attend", f"--workdir={workdir}", *arguments)
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode == 2 and words in lines[-1], done.stderr.decode()
    assert not any("Traceback" in line for line in lines) and not list(tmp_path.iterdir())
