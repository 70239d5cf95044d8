"""The commands as a user calls them, in this process: their output and their exit code."""

import contextlib
import importlib
import io
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from transformer_lab import cli
from transformer_lab.training.signals import SIGNALS

ROOT = Path(__file__).parents[1]


class Done(NamedTuple):
    """What a command left."""

    returncode: int
    stdout: bytes
    stderr: bytes


def command(name: str, *arguments: str | bytes, stdin: str | bytes = "") -> Done:
    """Runs `transformer_lab NAME ARGUMENTS`, all but the start of a process."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    given, out, err = (io.BytesIO(content) for content in (data, b"", b""))
    module = importlib.import_module(f"transformer_lab.commands.{name}")
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr
    sys.argv = [name, *map(os.fsdecode, arguments)]
    sys.stdin = io.TextIOWrapper(given, encoding="utf-8")
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8", write_through=True)
    try:
        with contextlib.chdir(ROOT):
            cli.run(module, sys.argv)
        code = 0
    except SystemExit as error:
        code = error.code or 0
    finally:
        found = out.getvalue(), err.getvalue()
        sys.argv, sys.stdin, sys.stdout, sys.stderr = before
        for number, handler in SIGNALS._old.items():  # which the command caught
            signal.signal(number, handler)
        SIGNALS._old = {}
    return Done(code, *found)
