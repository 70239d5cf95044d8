"""Finds the passages of a folder that answer a query best, in an index made by `index`.

    transformer_lab search --index=notes.npz "how to undo the last commit"

Each line has the score, the file with the number of its line, and how the passage begins. The
scores are cosines by the encoder that made the index; with `--words`, and where no encoder made it,
they are BM25's. Without arguments the queries are the lines on standard input.
"""

from pathlib import Path

from absl import flags

from transformer_lab import cli
from transformer_lab.commands.embed import from_source
from transformer_lab.data.passages import Index
from transformer_lab.errors import LabError
from transformer_lab.tasks.abilities import EmbedsTexts

WORDS = True  # arguments that are no flags: queries
SHOWN = 160  # characters of a passage


def define() -> None:
    flags.DEFINE_string("index", "", "The .npz file that `index` wrote.")
    flags.DEFINE_integer("count", 5, "How many passages to show.", lower_bound=1)
    flags.DEFINE_bool("words", False, "By words (BM25), not by vectors.")


def main(queries: list[str]) -> None:
    args = flags.FLAGS
    if not args.index:
        raise LabError("give --index=FILE.npz, which `index --folder=DIR` makes, and a query")
    index, vector = Index.load(Path(args.index)), None
    if args.words and not index.passages[0].text:
        raise LabError(f"--words: {args.index} is an index of images, which have no words")
    if index.vectors is not None and not args.words:
        task, params, place = from_source(index.source)
        embed = task.text_vectors if isinstance(task, EmbedsTexts) else task.embed
        vector = lambda query: embed(params, [query], place)[0]  # noqa: E731
    for query in queries or cli.input_lines():
        for score, passage in index.search(query, args.count, vector):
            print(f"{score:.4f}\t{passage.file}:{passage.line}\t{passage.text[:SHOWN]}", flush=True)
