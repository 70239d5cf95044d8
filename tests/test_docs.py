"""What the documents point at is there."""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

from transformer_lab import cli
from transformer_lab.__main__ import COMMANDS
from transformer_lab.kinds import shipped

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
