"""Prints a script that completes commands, flags and configs in bash or zsh.

    transformer_lab completion > ~/.transformer_lab.sh

Add `source ~/.transformer_lab.sh` to ~/.bashrc; in zsh after `autoload -U bashcompinit` and
`bashcompinit`. It is made anew with the package, so print it again after an update.
"""

import importlib
import sys
from pathlib import Path

from absl import flags

from transformer_lab import cli
from transformer_lab.__main__ import COMMANDS
from transformer_lab.kinds import SHIPPED

SCRIPT = """_transformer_lab() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words=""
  local before="${{COMP_WORDS[COMP_CWORD-1]}}" flag="${{COMP_WORDS[COMP_CWORD-2]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"
  elif [ "$word" = "=" ] && [ "$before" = "--config" ]; then words="{configs}" word=""
  elif [ "$before" = "=" ] && [ "$flag" = "--config" ]; then words="{configs}"
  else case "$command" in
{cases}
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [ ${{#COMPREPLY[@]}} -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
  case "${{COMPREPLY[0]}}" in --*=) compopt -o nospace 2>/dev/null;; esac
}}
complete -F _transformer_lab transformer_lab"""


def define() -> None:
    flags.DEFINE_string("folder", "configs", "The folder of configs whose names are completed.")


def main(_: list[str]) -> None:
    own, before = flags.FLAGS.folder, sys.argv
    sys.argv = ["transformer_lab", "--help"]  # so that no command looks for its run
    cases = []
    for name in COMMANDS:
        declared = cli.declare(importlib.import_module(f"transformer_lab.commands.{name}"))
        words = " ".join(f"--{flag}=" for flag in [*declared, *cli.COMMON])
        cases.append(f'    {name}) words="{words}";;')
    sys.argv = before
    folder = SHIPPED / "configs" if own == "configs" else Path(own)
    configs = " ".join(sorted(path.stem for path in folder.glob("*.py")))
    print(SCRIPT.format(commands=" ".join(COMMANDS), configs=configs, cases="\n".join(cases)))
