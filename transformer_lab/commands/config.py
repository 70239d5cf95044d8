"""Lists the configs, or shows what the keys of one mean.

    transformer_lab config --config=gpt_brown model.positions optimizer

Without --config each file of configs/ is a line; its bare name is enough for each --config. With it
each key is a line: its value, its type, its default where the value is another, and its meaning.
Words say which keys: the beginnings of their names. --config.KEY=VALUE changes a key first, so that
a value can be tried.
"""

import ast

from absl import flags

from transformer_lab import cli
from transformer_lab.errors import LabError, nearest
from transformer_lab.kinds import SHIPPED
from transformer_lab.training.config import resolve
from transformer_lab.training.explained import keys

WORDS = True  # beginnings of keys
CONFIG_FIRST = True  # unless the first word is a config


def define() -> None:
    cli.config_file()


def main(arguments: list[str]) -> None:
    if flags.FLAGS.config is None:
        for path in sorted((SHIPPED / "configs").glob("*.py")):
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            print(f"configs/{path.name:28}{text.splitlines()[0]}")
        return
    found = list(keys(resolve(cli.get_config())))
    for word in arguments:
        if not any(key.name.startswith(word) for key in found):
            names = {key.name for key in found}
            raise LabError(f"no key begins with {word}{nearest(word, names)}")
    for key in found:
        if key.name.startswith(tuple(arguments or [""])):
            print(key)
