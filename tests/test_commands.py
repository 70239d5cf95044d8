"""The commands: each is a file that is found by its name and says what it does."""

import importlib
import os
import re
import sys

import pytest

from transformer_lab import __main__ as entry
from transformer_lab import cli


def test_a_file_among_the_commands_is_a_command_and_its_first_line_is_shown(capsys, monkeypatch):
    for arguments in ([], ["--help"]):
        monkeypatch.setattr(sys, "argv", ["transformer_lab", *arguments])
        entry.main()
        shown = capsys.readouterr().out
        lines = [line.split()[0] for line in shown.splitlines() if line.startswith("  ")]
        assert lines == sorted(entry.COMMANDS) and len(lines) > 20
        assert "  train       Trains the run of a config, or resumes it\n" in shown


def test_the_version_is_that_of_the_package(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["transformer_lab", "--version"])
    entry.main()
    assert re.fullmatch(r"transformer_lab \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_a_misspelt_command_names_the_nearest(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["transformer_lab", "trian"])
    with pytest.raises(SystemExit) as info:
        entry.main()
    assert info.value.code == 2
    assert 'the command "trian" is unknown (did you mean "train"?)' in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_a_reader_that_leaves_before_the_end_ends_the_command_quietly(words, monkeypatch, capfd):
    """As `transformer_lab train --help | head -1`, with a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "argv", ["transformer_lab", *words])
    monkeypatch.setattr(sys, "stdout", os.fdopen(write, "w"))
    entry.main()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", entry.COMMANDS)
def test_help_shows_an_example_and_the_commands_own_flags(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    command = importlib.import_module(f"transformer_lab.commands.{name}")
    text, own = cli.help_of(command), cli.declare(command)
    first, empty, example = text.splitlines()[:3]
    assert first.endswith(".") and not empty
    assert example.startswith(f"    transformer_lab {name} ")
    assert own and all(f"\n  --{flag}: " in text for flag in {*own, *cli.COMMON})
