"""The commands as a user calls them: one line for what is wrong, exit code not 0."""

import importlib
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_lab
from tests.entry import ROOT, command
from tests.tiny import leave_run, tiny_config
from transformer_lab import cli
from transformer_lab.__main__ import COMMANDS
from transformer_lab.commands import merges
from transformer_lab.commands.translate import available
from transformer_lab.data.images.reading import read_image
from transformer_lab.errors import LabError, check_file, read_json
from transformer_lab.pretrained import check, hub
from transformer_lab.sweeps import experiment


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A tiny run, in a directory with every kind of letter that a file system takes."""
    path = tmp_path_factory.mktemp("run") / ("a %20#[a]{b,c}\\*?:=~$x\n'\"é" + "x" * 200)
    leave_run(tiny_config(), path)
    return path


SMOKE = "--config=configs/smoke.py"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([SMOKE, "--config.stepz=5"], 'config.stepz is not a key (did you mean "steps"?)'),
        ([SMOKE, "config.steps=7"], "write --config.steps=7"),
        ([SMOKE, "steps=7"], '"steps=7" is no flag'),
        ([SMOKE, "--config.tensorboard", "false"], "write --config.tensorboard=false"),
        (
            [SMOKE, "--config.model.widht=7"],
            'config.model.widht is not a key (did you mean "width"',
        ),
        ([SMOKE, "--config.zzzzz=7"], "config.zzzzz is not a key"),
        ([SMOKE, "--config.steps=20", "--config.stpes=3"], "config.stpes is not a key"),
        ([SMOKE, "--config.epochs=-1"], "epochs = -1"),
        ([SMOKE, "--config.optimizer.warmup_steps=-5"], "optimizer.warmup_steps = -5"),
        ([SMOKE, "--config.model.heads=0"], "model.heads = 0"),
        ([SMOKE, "--config.mesh.rules=(=fsdp"], "regular expression '('"),
        ([SMOKE, "--config.tokenizer.kind=byte", "--config.data.test_size=4"], "model.max_length"),
        ([SMOKE, "--config.steps=many"], "steps"),
        ([SMOKE, "--config.tokenizer.kind=bpee"], "bpee"),
        ([SMOKE, "--config.mesh.data=3", "--config.mesh.fsdp=3"], "does not fit"),
        ([SMOKE, "--config.data.source=files", "--config.data.path=/no/such.tsv"], "/no/such.tsv"),
        (["--config=configs/no_such.py"], "no_such"),
        (["--config=smokey"], 'smokey: no such file (did you mean "smoke"?)'),
        (["smokey"], 'smokey: no such file (did you mean "smoke"?)'),
        (["smoke", "--config.steps=abc"], "config.steps is of type int, and 'abc' is not"),
        ([SMOKE, "--config.model=abc"], "config.model is a section of keys, write --config.model."),
        ([SMOKE, "--profile=1.5"], "--profile=1.5: profile is of type int, and '1.5' is not"),
        ([], "--config=FILE is missing"),
        ([SMOKE, "--wrkdir=x"], "wrkdir"),
        ([SMOKE, "--config.average=3", "--config.keep=2"], "average"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(arguments, words, tmp_path):
    done = command("train", f"--workdir={tmp_path / 'run'}", *arguments)
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode != 0 and done.stdout == b""
    assert words in lines[-1], done.stderr.decode()
    assert sum("error" in line.lower() for line in lines) == 1
    assert not any("Traceback" in line for line in lines)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_misspelt_key_in_a_config_file_names_file_and_line(tmp_path):
    text = (ROOT / "configs" / "smoke.py").read_text(encoding="utf-8")
    file = tmp_path / "mine.py"
    file.write_text(text.replace("config.steps = 400", "config.stepz = 400"), encoding="utf-8")
    done = command("train", f"--config={file}", f"--workdir={tmp_path / 'run'}")
    last = done.stderr.decode().strip().splitlines()[-1]
    assert done.returncode == 2 and "mine.py:" in last and "stepz" in last and "steps" in last
    assert "Traceback" not in done.stderr.decode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("def get_config(", ["mine.py:1: ", "'(' was never closed"]),
        ("import nowhere\n", ["mine.py:1: ", "No module named 'nowhere'"]),
        ("def get_config():\n    return steps", ["mine.py:2: ", "'steps' is not defined"]),
    ],
)
def test_a_mistake_in_a_config_files_python_names_file_and_line(content, words, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(content, encoding="utf-8")
    done = command("train", f"--config={file}", f"--workdir={tmp_path / 'run'}")
    (line,) = done.stderr.decode().strip().splitlines()
    assert done.returncode == 2 and all(word in line for word in words), line


def test_evaluate_ends_with_one_json_line(workdir):
    done = command("evaluate", f"--workdir={workdir}", "--config.decode.beam_size=2")
    assert done.returncode == 0, done.stderr.decode()
    (line,) = done.stdout.decode().strip().splitlines()
    values = json.loads(line)
    assert {"bleu", "chrf", "loss", "num_examples"} <= set(values)
    assert values["num_examples"] == 10 and "tok:13a" in values["bleu_signature"]


def test_translate_keeps_order_and_survives_any_line(workdir):
    lines = ["and big", "", "   ", "big " * 60, "\x00 é 👩‍🚀 \u0301", "moon river", "\ufeffand"]
    data = "\n".join(lines).encode() + b"\n\xff\xfe broken\n"
    done = command("translate", f"--workdir={workdir}", stdin=data)
    out = done.stdout.decode().split("\n")
    assert done.returncode == 0, done.stderr.decode()
    assert len(out) - 1 == len(lines) + 1
    assert out[1] == out[2] == out[3] == ""
    assert "not translated, 61 tokens (at most 16): big big" in done.stderr.decode()
    alone = command("translate", f"--workdir={workdir}", "moon river")
    assert alone.stdout.decode() == out[5] + "\n"


@pytest.mark.parametrize("module", ["translate", "evaluate"])
def test_a_directory_without_a_run_is_one_line(module, tmp_path):
    done = command(module, f"--workdir={tmp_path}")
    last = done.stderr.decode().strip().splitlines()[-1]
    assert done.returncode == 2 and "holds no run" in last and "Traceback" not in last


@pytest.mark.slow
def test_training_and_evaluation_run_without_the_optional_packages(tmp_path):
    """tensorboardX, tensorflow_datasets, tokenizers, pysword and safetensors are hidden."""
    hidden = tmp_path / "hidden"
    for name in ("tensorboardX", "tensorflow_datasets", "tokenizers", "pysword", "safetensors"):
        package = hidden / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise ImportError('hidden')", encoding="utf-8")
    small = ["--config.steps=2", "--config.tensorboard=True", "--config.task.samples=0"]
    code = f"""
import sys
from tests.entry import command
for name, more in ("train", {[SMOKE, *small]!r}), ("evaluate", []):
    done = command(name, {f"--workdir={tmp_path / 'run'}"!r}, *more)
    sys.stdout.buffer.write(done.stdout), sys.stderr.buffer.write(done.stderr)
    assert done.returncode == 0
"""
    flags = "--xla_backend_optimization_level=0"
    environment = {**os.environ, "PYTHONPATH": str(hidden), "XLA_FLAGS": flags}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    assert "no TensorBoard events" in done.stderr.decode()
    assert json.loads(done.stdout)["num_examples"] == 100


def test_only_commands_that_take_texts_or_files_take_words_that_are_no_flags():
    modules = {n: importlib.import_module(f"transformer_lab.commands.{n}") for n in COMMANDS}
    takers = {name for name, module in modules.items() if getattr(module, "WORDS", False)}
    texts = {"config", "merges", "neighbours", "predict", "translate"}
    files = {"detect", "embed", "forecast", "search", "transcribe", "watch", "zero_shot"}
    assert takers == texts | files


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "a directory"),
        (lambda path: os.mkfifo(path), "a pipe or a device"),
        (lambda path: path.symlink_to("/dev/zero"), "a pipe or a device"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels"),
    ],
)
def test_what_is_no_file_is_refused_by_every_flag_that_names_one(make, words, tmp_path):
    """Each would otherwise be a traceback, or a read without an end."""
    make(path := tmp_path / "given")
    for read in (
        lambda path: experiment.load_module(str(path)),
        read_image,
        read_json,
        check.read_arrays,
        hub._read_safetensors,
        merges._read,
    ):
        with pytest.raises(LabError, match=words) as caught:
            read(path)
        assert str(path) in str(caught.value)


@pytest.mark.skipif(os.getuid() == 0, reason="all may read")
def test_a_file_without_permission_is_named(tmp_path):
    path = tmp_path / "given"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(LabError, match="given: cannot be read: Permission denied"):
        check_file(path)


def test_standard_input_that_is_closed_or_cannot_be_read_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(LabError, match="standard input is closed"):
        list(cli.input_lines())
    with open(tmp_path / "write only", "w") as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(LabError, match="standard input cannot be read: .*not readable"):
            list(cli.input_lines())


def test_a_run_is_opened_in_python(workdir):
    run = transformer_lab.open_run(workdir, {"decode.beam_size": 2})
    beams = command(
        "translate", f"--workdir={workdir}", "moon river", "--config.decode.beam_size=2"
    )
    assert run.translate("moon river") == beams.stdout.decode().rstrip("\n")
    assert run.translate(["moon", "moon river"])[1] == run.translate("moon river")
    logits = run.logits("big moon", "moon big")
    ids = run.task.encode("moon big")
    batch = {"source": jnp.array([run.task.encode("big moon")]), "target": jnp.array([ids])}
    masks = {f"{name}_mask": jnp.ones(x.shape, bool) for name, x in batch.items()}
    nats, count = jax.jit(run.task.metrics)(run.params, batch | masks)["nll"]
    chances = np.take_along_axis(jax.nn.log_softmax(logits), np.array(ids)[:, None], 1)
    assert logits.shape == (len(ids), run.task.model_config.vocab_size) and count == len(ids)
    np.testing.assert_allclose(-chances.sum(), nats, rtol=1e-5)
    for call in (run.generate, run.predict, run.encode):
        with pytest.raises(LabError, match="a run of translation does not "):
            call("a")
    with pytest.raises(LabError, match="config.decode.beams is not a key"):
        transformer_lab.open_run(workdir, {"decode.beams": 2})


@pytest.mark.parametrize(("module", "names"), [
    ("transformer_lab", {"jax", "flax", "numpy"}),
    ("transformer_lab.commands.train", {"matplotlib", "pandas", "sacrebleu", "sklearn"}),
])  # fmt: skip
def test_an_import_does_not_load_what_only_others_need(module, names):
    code = f"import sys, {module}; print({names} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_a_misspelt_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="open_rum"):
        transformer_lab.open_rum  # noqa: B018


def test_translate_ends_with_the_error_that_reading_a_line_raises():
    def lines():
        yield "a"
        raise LabError("broken")

    found = available(lines(), 4)
    with pytest.raises(LabError, match="broken"):
        [group for group in found]


def test_lines_are_grouped_as_they_arrive_and_none_waits():
    read, write = os.pipe()
    groups = available(open(read, encoding="utf-8"), 3)  # noqa: SIM115
    os.write(write, b"one\n")
    assert [line.strip() for line in next(groups)] == ["one"]
    os.write(write, b"two\nthree\nfour\nfive\n")
    os.close(write)
    rest = [line.strip() for group in groups for line in group]
    assert rest == ["two", "three", "four", "five"]
    sizes = [len(group) for group in available([str(i) for i in range(8)], 3)]
    assert sum(sizes) == 8 and max(sizes) <= 3
