"""Turkish sentences of the web and of Wikipedia with dependency trees by hand (pip).

Its words are inflectional groups: "açıklanmayan" is Açık la nma yan, joined by the relation ig."""

from typing import Any

from transformer_lab.data.fetch import folders
from transformer_lab.data.formats import conllu
from transformer_lab.data.splits import Found, Item, Report

PACKAGE = "turkish-treebanks"
LICENCE = "Apache-2.0"


def labelled(config: Any, report: Report) -> Found:
    """Each page is a group, by the sentence's id PAGE:SENTENCE; web and Wikipedia are strata."""
    (folder,) = folders(config.path, PACKAGE)
    items = []
    for file in sorted(folder.rglob("*.conllu")):
        for comments, row in conllu.sentences(file):
            name = next(line for line in comments if line.startswith("# sent_id"))
            items.append(Item(name.rpartition(":")[0], row, file.stem))
    return Found({"train": items}, LICENCE)
