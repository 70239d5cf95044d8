"""Training and opening from Python: data in memory, names of configs, what a notebook shows."""

import json
import shutil
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import jax
import numpy as np
import pytest

import transformer_lab
from tests.entry import ROOT, command
from tests.tiny import STACK, config_of, tiny_config
from transformer_lab.data.documents import load_documents
from transformer_lab.data.images.sources import load_images
from transformer_lab.data.labelled import load_labelled
from transformer_lab.errors import LabError
from transformer_lab.in_python import WRITERS
from transformer_lab.kinds import SHIPPED, shipped
from transformer_lab.pretrained import hub
from transformer_lab.training import sinks
from transformer_lab.training.config import resolve

PAIRS = [(f"w{i} w{i + 1}", f"w{i + 1} w{i}") for i in range(40)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps on pairs in memory, which two sinks saw."""
    told = []
    wandb, mlflow = ModuleType("wandb"), ModuleType("mlflow")
    wandb.init = lambda **given: SimpleNamespace(
        log=lambda values, step: told.append(("wandb", given["name"], step, values)),
        finish=lambda: told.append(("wandb", given["id"], "end")),
    )
    mlflow.start_run = lambda run_id="new", run_name="": (
        told.append(("mlflow", run_id, run_name))
        or SimpleNamespace(info=SimpleNamespace(run_id="7"))
    )
    mlflow.log_metrics = lambda values, step: told.append(("mlflow", step, values))
    mlflow.end_run = lambda: told.append(("mlflow", "end"))
    path = tmp_path_factory.mktemp("run") / "mine"
    config = tiny_config(steps=2, mesh__data=-1, sinks=("wandb", "mlflow"))
    config.data.update(validation_size=4, test_size=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wandb", wandb)
        patch.setitem(sys.modules, "mlflow", mlflow)
        return transformer_lab.train(config, path, PAIRS), told


def test_a_translator_is_trained_on_pairs_in_memory_and_opened(run):
    opened, _ = run
    assert opened.task.data.report == {"read": 40, "train": 32, "validation": 4, "test": 4}
    every = [
        row for split in ("train", "validation", "test") for row in opened.task.examples(split)
    ]
    assert sorted(map(tuple, every)) == sorted(PAIRS)
    assert isinstance(opened.translate("w1 w2"), str)
    count = sum(x.size for x in jax.tree.leaves(opened.params))
    assert repr(opened) == (
        f"<run {opened.workdir}: translation by a model encoder_decoder of {count:,} parameters; "
        "it can translate>"
    )
    frame = opened._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and "data.path" in frame and "<script" not in frame
    page = opened.attend("w1 w2", "w2 w1")
    assert "decoder to encoder" in page.text or "cross" in page.text


def test_the_sinks_get_every_line_with_numbers_alone(run):
    opened, told = run
    lines = [json.loads(x) for x in (opened.workdir / "metrics.jsonl").read_text().splitlines()]
    mine = [entry for entry in told if entry[0] == "wandb" and len(entry) == 4]
    assert [(name, step) for _, name, step, _ in mine] == [("mine", x["step"]) for x in lines]
    assert mine[0][3]["loss"] == lines[0]["loss"]
    ids = {entry[1] for entry in told if entry[0] == "wandb" and entry[2] == "end"}
    assert ids == {(opened.workdir / "wandb.txt").read_text()} != {"mine"}  # names may come twice
    logged = [entry for entry in told if entry[0] == "mlflow" and isinstance(entry[1], int)]
    assert [entry[2] for entry in logged] == [entry[3] for entry in mine]
    assert all(isinstance(v, float | int) for *_, values in logged for v in values.values())
    starts = [entry[1:] for entry in told if entry[0] == "mlflow" and len(entry) == 3]
    starts = [entry for entry in starts if isinstance(entry[0], str)]
    assert starts == [("new", "mine"), ("7", "")]  # the scores at the end go on with the first


def test_a_sink_that_is_unknown_or_missing_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(LabError, match=r'config.sinks: "wand" is unknown.*"wandb"'):
        sinks.open_sinks(("wand",), tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(LabError, match="pip install mlflow"):
        sinks.open_sinks(("mlflow",), tmp_path)


def data_of(model, task, data, folder, **changes):
    config = config_of(model, task, **changes)
    section = resolve(config).sections["data"]
    config.data.update(WRITERS[section.KIND](data, section, folder))
    return resolve(config).sections["data"]


def test_texts_classes_and_arrays_in_memory_are_what_is_trained_on(tmp_path):
    texts = [f"text {i} é\nline" for i in range(30)]
    found = load_documents(data_of("decoder", "language_modeling", texts, tmp_path / "a"))
    assert sorted([*found.train, *found.validation, *found.test]) == sorted(texts)
    rows = [(f"text {i}", ("ham", "spam")[i % 2]) for i in range(30)]
    found = load_labelled(data_of("encoder", "classification", rows, tmp_path / "b"))
    every = [*found.train, *found.validation, *found.test]
    assert sorted((row.text, row.label) for row in every) == sorted(rows)
    images = np.random.default_rng(0).integers(0, 255, (20, 6, 5), np.uint8)
    labels = ["cat", "owl"] * 10
    given = data_of("cnn", "image_classification", (images, labels), tmp_path / "c",
                    data__channels=1, data__size=(6, 5))  # fmt: skip
    found = load_images(given)
    every = [row for part in (found.train, found.validation, found.test) for row in part]
    mine = {(row["image"].tobytes(), found.labels[row["label"]]) for row in every}
    assert mine == {(x.tobytes(), label) for x, label in zip(images, labels, strict=True)}


def test_a_run_of_epochs_is_used_without_the_data_it_was_trained_on(tmp_path):
    rows = [(f"{'good' if i % 2 else 'bad'} text {i}", ("no", "yes")[i % 2]) for i in range(40)]
    small = {"tokenizer.kind": "word", "epochs": 1.0, "batch.tokens_per_batch": 64}
    config = config_of("encoder", "classification", STACK, small, batch__buckets=1, mesh__data=8)
    transformer_lab.train(config, tmp_path / "run", rows)
    shutil.rmtree(tmp_path / "run" / "data")
    run = transformer_lab.open_run(tmp_path / "run")
    assert run.predict("good text")["label"] in ("no", "yes")
    done = command("translate", f"--workdir={tmp_path / 'run'}", "a")
    assert done.returncode == 2 and b"classification does not translate" in done.stderr


def test_data_of_another_form_is_one_line(tmp_path):
    with pytest.raises(LabError, match='"stepz" is no key of the config .did you mean "steps"'):
        transformer_lab.train("smoke", tmp_path, changes={"stepz": 3})
    for data, words in ((["ab"], "not a pair of texts"), ([("a", 1)], "not a pair of texts")):
        with pytest.raises(LabError, match=words):
            transformer_lab.train(tiny_config(), tmp_path, data)
    with pytest.raises(LabError, match="takes no data in memory"):
        transformer_lab.train(config_of("encoder", "parentheses"), tmp_path, [1])


def test_a_shipped_config_goes_by_its_bare_name_from_anywhere(tmp_path, monkeypatch):
    assert transformer_lab.load_config("smoke", {"steps": 3}).steps == 3
    assert transformer_lab.load_config("cnn_fashion_mnist:lenet").model.net == "lenet"
    done = command("config", "--config=smoke", "steps")
    assert done.stdout.decode().startswith("steps = 400 (int, default 1000)"), done.stderr
    monkeypatch.chdir(tmp_path)
    for name in ("smoke", "smoke.py", "configs/smoke.py"):
        assert shipped("configs", name) == str(ROOT / "configs" / "smoke.py")
    assert shipped("experiments", "dropout") == str(ROOT / "experiments" / "dropout.py")
    (tmp_path / "smoke").write_text("")
    assert shipped("configs", "smoke") == "smoke" and shipped("configs", "smok") == "smok"
    assert ROOT == SHIPPED  # a wheel has them in the package
    assert '"transformer_lab.configs": "configs"' in (ROOT / "setup.py").read_text()


def test_a_name_of_the_hub_is_fetched_by_its_own_client_or_refused_in_one_line(
    monkeypatch, tmp_path
):
    module = ModuleType("huggingface_hub")
    module.snapshot_download = lambda name, allow_patterns: f"/cache/{name}"
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.chdir(tmp_path)
    assert str(hub.local("org/model.1")) == "/cache/org/model.1"
    (tmp_path / "org" / "there").mkdir(parents=True)
    for name in ("org/there", "/no/such/directory"):
        assert str(hub.local(name)) == name

    def offline(*_, **__):
        raise OSError("no network\nand more")

    module.snapshot_download = offline
    with pytest.raises(LabError, match=r"org/gone: no such directory, .*fetched \(no network\)$"):
        hub.local("org/gone")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_flags_and_configs(tmp_path):
    script = tmp_path / "complete.sh"
    done = command("completion")
    assert done.returncode == 0, done.stderr
    script.write_bytes(done.stdout)

    def completed(*words):
        line = " ".join(f"'{word}'" for word in ("transformer_lab", *words))
        code = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _transformer_lab; "
        code += 'printf "%s\\n" "${COMPREPLY[@]}"'
        return subprocess.run(["bash", "-c", code], capture_output=True, text=True).stdout.split()

    assert completed("trans") == ["transcribe", "translate"]
    assert completed("baseline", "--ord") == ["--order="]
    assert completed("train", "--config", "=", "smo") == ["smoke"]
    assert "smoke" in completed("train", "--config", "=")
