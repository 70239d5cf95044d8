"""What the documents point at is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_every_test_that_docs_sources_names_exists():
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", (ROOT / "docs/sources.md").read_text("utf-8"))
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, file
    assert len(named) >= 9


@pytest.mark.parametrize(
    "path", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").iterdir())]
)
def test_every_link_to_a_file_leads_to_one(path):
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / path).read_text("utf-8"))
    assert [link for link in links if not (ROOT / path).parent.joinpath(link).exists()] == []
