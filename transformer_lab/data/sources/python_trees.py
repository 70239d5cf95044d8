"""Expressions of Python's standard library with their exact trees, by the module `ast`.

The library is that of the Python that runs, so that another version gives other pairs."""

import ast
import io
import sysconfig
import tokenize
from pathlib import Path
from typing import Any

from transformer_lab.data.fetch import folders
from transformer_lab.data.splits import Found, Item, Report

LICENCE = "PSF-2.0"
FEWEST, MOST = 4, 24  # tokens of an expression
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__"}
_FILLING = {tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER, tokenize.COMMENT}


def pairs(config: Any, report: Report) -> Found:
    """The tokens of each expression, and its tree without them: ("f ( x )", "(Call (Name XX) XX
    (Name XX) XX)"). They stand in one line and hold ASCII without white space.

    `config.path` is a folder of Python files, by default the standard library. A file is a group.
    """
    root = folders(config.path)[0] if config.path else Path(sysconfig.get_path("stdlib"))
    items, seen = [], set()
    for file in sorted(root.rglob("*.py")):
        if _LEFT_OUT & set(file.relative_to(root).parts):
            continue
        for source in expressions(file.read_text("utf-8", "replace")):
            pair = None if source in seen else tree_of(source)
            if pair:
                items.append(Item(str(file.relative_to(root)), pair))
            else:
                report["duplicate" if source in seen else "length_or_form"] += 1
            seen.add(source)
    return Found({"train": items}, LICENCE)


def expressions(text: str) -> list[str]:
    """The outermost expressions of the statements of a file, where they stand in one line."""
    try:
        statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    except SyntaxError:
        return []
    nodes = [node for each in statements for node in ast.iter_child_nodes(each)]
    found = [n for n in nodes if isinstance(n, ast.expr) and n.lineno == n.end_lineno]
    rows = [row.encode() for row in text.split("\n")]  # columns count bytes
    return [rows[n.lineno - 1][n.col_offset : n.end_col_offset].decode() for n in found]


def tree_of(source: str) -> tuple[str, str] | None:
    """The tokens of an expression and its bracket string, or None if either does not serve."""
    if not source.isascii():
        return None
    try:
        root = ast.parse(source, mode="eval").body
        found = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, tokenize.TokenError):
        return None
    tokens = [t for t in found if t.type not in _FILLING]
    words = [t.string for t in tokens]
    formatted = any(isinstance(node, ast.JoinedStr) for node in ast.walk(root))
    if not FEWEST <= len(words) <= MOST or formatted or any(len(w.split()) != 1 for w in words):
        return None
    columns = {t.start[1]: i for i, t in enumerate(tokens)}
    ends = {t.end[1]: i + 1 for i, t in enumerate(tokens)}

    def brackets(node: ast.AST) -> str:
        inside, at = [], columns[node.col_offset]
        for child in sorted(_parts(node), key=lambda child: child.col_offset):
            start, end = columns[child.col_offset], ends[child.end_col_offset]
            inside += ["XX"] * (start - at) + [brackets(child)]
            at = end
        inside += ["XX"] * (ends[node.end_col_offset] - at)
        return f"({type(node).__name__} {' '.join(inside)})"

    return " ".join(words), brackets(root)


def _parts(node: ast.AST) -> list[ast.AST]:
    """The nodes below a node; in the place of one that has no columns, those below it."""
    parts = []
    for child in ast.iter_child_nodes(node):
        parts += [child] if hasattr(child, "col_offset") else _parts(child)
    return parts
