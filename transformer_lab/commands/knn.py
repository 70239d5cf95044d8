"""Mixes a language model with what followed at similar places of other texts (kNN-LM).

    transformer_lab knn --workdir=runs/gpt --tokens=200000
    transformer_lab knn --workdir=runs/gpt --config.data.source=libreoffice_help

The datastore is made of the training split and the test split is scored, by weight of the datastore
and by temperature, without training (Khandelwal 2020). With another `--config.data` the texts are
others than those that the model was trained on, and the datastore adapts it to them. Weight 0 is
the model alone.
"""

from absl import flags
from rich.console import Console
from rich.table import Table

from transformer_lab import cli
from transformer_lab.errors import known
from transformer_lab.tasks.language_modeling import LanguageModeling
from transformer_lab.tasks.nearest_tokens import Reader, mixed_bits
from transformer_lab.training.writers import log


def define() -> None:
    cli.run_flags()
    flags.DEFINE_string("split", "test", "validation | test.")
    flags.DEFINE_integer("tokens", 0, "Tokens of the datastore, at least (0: all).", lower_bound=0)
    flags.DEFINE_integer("scored", 0, "Tokens that are scored, at least (0: all).", lower_bound=0)
    flags.DEFINE_integer("neighbours", 64, "States that are looked up.", lower_bound=1)
    shares = [0.0, 0.05, 0.1, 0.2, 0.3, 0.5]
    text = "Of the datastore; give the flag several times."
    flags.DEFINE_multi_float("weight", shares, text, lower_bound=0, upper_bound=0.999)
    text = "Of the distances; give the flag several times."
    flags.DEFINE_multi_float("temperature", [1.0, 3.0, 10.0, 30.0], text, lower_bound=1e-3)


def main(_: list[str]) -> None:
    args = flags.FLAGS
    known("--split=", args.split, ("validation", "test"))
    weights, temperatures = args.weight, args.temperature
    trainer, params = cli.open_run(LanguageModeling, "model language")
    read = Reader(trainer.task, params, trainer.place)
    store, test = read("train", args.tokens), read(args.split, args.scored)
    log(f"datastore: {len(store.tokens):,} tokens; scored: {len(test.tokens):,} tokens")
    bits = mixed_bits(store, test, args.neighbours, temperatures, weights)
    heads = (f"bits per byte at temperature {t:g}" for t in temperatures)
    table = Table("weight", *heads, "perplexity at the best")
    for weight, row in zip(weights, bits.T, strict=True):
        best = 2 ** (row.min() * test.bytes / len(test.tokens))
        table.add_row(f"{weight:g}", *(f"{value:.4f}" for value in row), f"{best:.2f}")
    Console().print(table)
