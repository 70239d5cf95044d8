"""What the documents point at is there."""

import ast
import importlib
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import transformer_lab
from tests.entry import command
from transformer_lab import cli
from transformer_lab.__main__ import COMMANDS
from transformer_lab.kinds import shipped
from transformer_lab.opened import OpenedRun

ROOT = Path(__file__).parents[1]


def test_every_test_that_docs_sources_names_exists():
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", (ROOT / "docs/sources.md").read_text("utf-8"))
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, file
    assert len(named) >= 9


@pytest.mark.parametrize(
    "path", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_every_link_to_a_file_leads_to_one(path):
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / path).read_text("utf-8"))
    assert [link for link in links if not (ROOT / path).parent.joinpath(link).exists()] == []


def commands():
    """Every `transformer_lab COMMAND ...` in the blocks of README and docs, without comments."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in re.findall(r"^```\w*\n(.*?)^```", path.read_text("utf-8"), re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                for words in re.split(r"&&|[|;] ", line.split(" #")[0]):
                    if found := re.match(
                        r"(?:python -m )?transformer_lab (\w+)(.*)", words.strip()
                    ):
                        yield path.name, found[1], found[2]


def test_every_command_in_the_docs_has_the_flags_that_they_give_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["transformer_lab", "--help"])  # no run is looked for
    flags = {}
    for name in COMMANDS:
        declared = cli.declare(importlib.import_module(f"transformer_lab.commands.{name}"))
        flags[name] = {*declared, *cli.COMMON}
    count = 0
    for page, name, rest in commands():
        assert name in COMMANDS, (page, name)
        given = {flag.removeprefix("no") if flag not in flags[name] else flag
                 for flag in re.findall(r"(?<=--)\w+", rest)}  # fmt: skip
        assert given <= flags[name], (page, name, given - flags[name])
        for config in re.findall(r"--config=([\w./]+)", rest):
            known = config.isupper() or Path(shipped("configs", config)).is_file()
            assert known or config == "mine.py", (page, config)
        count += 1
    assert count > 60


def test_every_page_of_the_docs_is_in_the_site():
    site = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r": (\w+\.md)$", site, re.M)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


SMALL = {"layers": 1, "width": 16, "heads": 2, "head_dim": 8, "feed_forward_width": 16}
QUICK = [f"--config.model.{key}={value}" for key, value in SMALL.items()]
JOBS = {  # by the name of the run in the README: what makes it quick
    "mine": [*QUICK, "--config.epochs=1", "--config.tokenizer.kind=word"],
    "pairs": [*QUICK, "--config.steps=3", "--config.tokenizer.kind=word"],
    "texts": [*QUICK, "--config.steps=3", "--config.tokenizer.kind=byte",
              "--config.batch.length=16", "--config.batch.rows=8", "--config.eval_every=3",
              "--config.model.max_length=64", "--config.task.samples=0"],
    "images": ["--config.steps=3", "--config.batch.rows=8", "--config.model.stages=(1,)",
               "--config.model.width=4"],
}  # fmt: skip
EXPERIMENT = """
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import vary


def get_experiment(scale):
    small = {"steps": 2, "task.score_examples": 0, "tensorboard": False}
    return Experiment("smoke", vary("model.dropout", [0.0, 0.1]), changes=small)
"""


def own_data(folder):
    """A user's files, as the README names them."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefgh"), 5)) for _ in range(80)]
    rows = [f"{text},{'yes' if 'a' in text else 'no'}" for text in texts]
    (folder / "mine.csv").write_text("\n".join(["text,label", *rows]))
    pairs = [f"{text}\t{text[::-1]}" for text in texts]
    (folder / "pairs.tsv").write_text("\n".join(pairs))
    (folder / "TEXTS").mkdir()
    for i, text in enumerate(texts):
        (folder / "TEXTS" / f"{i}.txt").write_text(f"{text} " * 5)
    for i in range(24):
        file = folder / "IMAGES" / ("cat", "owl")[i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (20 + i, 30), 10 * i).save(file)
    (folder / "mine.py").write_text(EXPERIMENT)


@pytest.mark.slow
def test_the_five_jobs_of_the_readme_run_on_a_users_files(tmp_path):
    own_data(tmp_path)
    jobs = (ROOT / "README.md").read_text("utf-8").split("## Five jobs")[1].split("\n## ")[0]
    lines = [line.split(" #")[0] for line in jobs.splitlines() if line.startswith("transformer_")]
    assert len(lines) == 15
    for line in lines:
        kind = "IMAGES" if "images" in line or "cnn" in line else "TEXTS"
        line = line.replace("FOLDER/cat/1.png", "FOLDER/cat/0.png").replace("FOLDER", kind)
        for name in ("mine.csv", "pairs.tsv", "TEXTS", "IMAGES", "mine.py", "attention.html"):
            line = line.replace(name, str(tmp_path / name))
        _, name, *words = shlex.split(line.replace("runs/", f"{tmp_path}/runs/"))
        if name == "train":
            words += JOBS[re.search(r"runs/(\w+)", line)[1]] + ["--config.tensorboard=False"]
        if name == "generate":
            words += ["--config.decode.max_new_tokens=3"]
        words = [word.replace("--parallel=2", "--parallel=1") for word in words]
        done = command(name, *words)
        assert done.returncode == 0, (line, done.stderr.decode()[-2000:])
    assert (tmp_path / "attention.html").exists() and (
        tmp_path / "runs/dropout/report.html"
    ).exists()


def test_the_api_page_names_every_public_name_and_method():
    page = (ROOT / "docs/api.md").read_text("utf-8").split("\n:::")
    words = "\n".join(part.split("\n\n", 1)[-1] for part in page)  # without the directives
    public = {f"lab.{name}(" for name in transformer_lab.__all__}
    methods = {f"run.{name}(" for name, x in vars(OpenedRun).items()
               if name[0] != "_" and callable(x)}  # fmt: skip
    assert {name for name in public | methods if name not in words} == set()
