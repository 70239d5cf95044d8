"""`python -m transformer_lab COMMAND ...`, or `transformer_lab COMMAND ...`: finds the command."""

import ast
import importlib
import os
import sys
from importlib.metadata import version
from pathlib import Path

from transformer_lab.errors import LabError, known
from transformer_lab.training.signals import SIGNALS
from transformer_lab.training.startup import keep_memory

COMMANDS = {
    path.stem: path for path in sorted((Path(__file__).parent / "commands").glob("[!_]*.py"))
}


def main() -> None:
    """Runs the command line, quietly to its end if the reader of the output has gone, as `head`."""
    try:
        try:
            run()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run() -> None:
    """Runs the command that the first argument names; without one, lists the commands."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name.strip("-") in ("h", "help", "helpfull", "helpshort"):
        print(overview())
        return
    if name == "--version":
        print(f"transformer_lab {version('transformer_lab')}")
        return
    try:
        known("the command ", name, COMMANDS)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    SIGNALS.catch()  # before what takes seconds to load
    if name == "train":
        keep_memory()
    sys.argv = [name, *rest]
    from transformer_lab import cli

    cli.run(importlib.import_module(f"transformer_lab.commands.{name}"), sys.argv)


def overview() -> str:
    """A list of all commands, each with its docstring's first line; none of them is imported."""
    lines = ["transformer_lab COMMAND [--FLAG=VALUE ...]", ""]
    for name, path in COMMANDS.items():
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        lines.append(f"  {name:12}{text.splitlines()[0].rstrip('.:')}")
    return "\n".join([*lines, "", "transformer_lab COMMAND --help shows an example and the flags."])


if __name__ == "__main__":
    main()
