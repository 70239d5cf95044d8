"""The splits of every source that needs no download are the same, digit for digit, for ever.

A changed hash means that a stored run would train on other examples than it was begun with.
"""

import hashlib
import json
from dataclasses import astuple
from pathlib import Path

import pytest

from tests.data.test_labelled_sources import brown_corpus, film_reviews
from tests.data.test_splits import load, parts
from tests.tiny_emoji import write_emoji
from transformer_lab.data import text_tasks
from transformer_lab.data.documents import DocumentsConfig
from transformer_lab.data.emoji import EmojiConfig
from transformer_lab.data.images.sources import ImageConfig
from transformer_lab.data.labelled import LabelledConfig
from transformer_lab.data.parallel import PairsConfig
from transformer_lab.data.parentheses import ParenthesesConfig
from transformer_lab.data.sequences import SequencesConfig

PAIRS = [(f"Source {i % 37} é", f"cible {i}") for i in range(90)] + [("", "x"), ("source 3 É", "y")]
TEXTS = [f"Text {i % 50}\nline é {i % 50}." for i in range(60)] + [" "]
SIZES = {"validation_size": 5, "test_size": 7}
SHARES = {"split_seed": 1, "test_share": 0.2}
MADE = {  # sizes of what is generated
    ParenthesesConfig: {"train_size": 200, "validation_size": 20, "test_size": 20},
    SequencesConfig: {"train_size": 40, **SIZES},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    for name, rows in {"p": PAIRS, "pairs/train": PAIRS[:60], "pairs/dev": PAIRS[60:70],
                       "pairs/test": PAIRS[70:]}.items():  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows), "utf-8")
    for name, some in {"d": TEXTS, "docs/train": TEXTS[:40], "docs/valid": TEXTS[30:45]}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        lines = (json.dumps({"text": text}) + "\n" for text in some)
        (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")
    rows = [
        {"text": t, "label": "abc"[i * i % 3], "pair": f"p{i % 4}"} for i, t in enumerate(TEXTS)
    ]
    (folder / "l.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    begin = "-DOCSTART- O\n\n"
    tagged = (begin * (i % 5 == 0) + f"w{i} NN B-X\nof IN O\n\n" for i in range(40))
    (folder / "l.conll").write_text("".join(tagged), "utf-8")
    film_reviews(folder / "films")
    brown_corpus(folder / "brown")
    write_emoji(folder / "emoji")
    return folder


def content(row):
    """A row as JSON can hold it."""
    if isinstance(row, dict) and "tokens" in row:
        return {name: values.tolist() for name, values in row.items()}
    if isinstance(row, dict):
        return [hashlib.sha256(row["image"].tobytes()).hexdigest(), row["label"]]
    return astuple(row) if hasattr(row, "__dataclass_fields__") else row


def short(value) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


GOLDEN = [  # a config, and the hashes of its splits and of their fingerprint
    (PairsConfig, {"source": "reverse", **SIZES}, "3b8ae40ecf6b998e", "e060583dde97726a"),
    (PairsConfig, {"source": "reverse", "max_pairs": 50, "split_seed": 3},
     "8f532090118bc331", "e9e2626796f7f9bf"),
    (PairsConfig, {"source": "files", "path": "p.tsv", **SIZES},
     "0281799fa58658aa", "42b1afecb49eb3ea"),
    (PairsConfig, {"source": "files", "path": "p.tsv", "max_pairs": 11, **SIZES},
     "bcc8197091db9a67", "e8f476a8ed54f84b"),
    (PairsConfig, {"source": "files", "path": "pairs", "max_pairs": 20},
     "62b40de2e46bb225", "0226c55bdb8f171f"),
    (DocumentsConfig, {"source": "patterns"}, "c8d811b65e544855", "c8d811b65e544855"),
    (DocumentsConfig, {"source": "patterns", "max_documents": 50, **SHARES},
     "99f6db95d473334b", "99f6db95d473334b"),
    (DocumentsConfig, {"source": "files", "path": "d.jsonl"},
     "d6d53ce57dac6c92", "d6d53ce57dac6c92"),
    (DocumentsConfig, {"source": "files", "path": "docs", **SHARES},
     "1793b7217198896a", "1793b7217198896a"),
    (DocumentsConfig, {"source": "brown", "path": "brown", **SHARES},
     "aa1d5f05a9370e85", "aa1d5f05a9370e85"),
    (LabelledConfig, {"source": "generated"}, "c3f1bc540d4c33dd", "1194a9739ee70109"),
    (LabelledConfig, {"source": "generated", "max_examples": 50, **SHARES},
     "5ad0d5b7121beee0", "e32298c1977871e5"),
    (LabelledConfig, {"source": "generated_tags"}, "fc01b298f35bf695", "e723ee5f2c1ec583"),
    (LabelledConfig, {"source": "generated_spans"}, "3c364258e3d02f41", "fc8377eea1c13005"),
    (LabelledConfig, {"source": "files", "path": "l.jsonl"},
     "a6d952842df6fe58", "753daf903a2d1b4f"),
    (LabelledConfig, {"source": "files", "path": "l.jsonl", "pair_column": "pair", **SHARES},
     "ec4d9cabbe8d59fe", "ef55fe5d805fa022"),
    (LabelledConfig, {"source": "files", "path": "l.conll", **SHARES},
     "0e755e27fab95a42", "3be30665245b1aaa"),
    (LabelledConfig, {"source": "reviews", "path": "films", **SHARES},
     "2dd629cf60630b47", "a8b6e51fb3d87e17"),
    (LabelledConfig, {"source": "brown_genre", "path": "brown", **SHARES},
     "e78af38310d76428", "962dd89cde297a37"),
    (LabelledConfig, {"source": "brown_pos", "path": "brown"},
     "6b2762e880d11d89", "e3dcfaa107c087ae"),
    (ParenthesesConfig, {}, "17e662f92650c738", "78f63ef91fb5aff8"),
    (ParenthesesConfig, {"symbols": "ten", "seed": 1}, "f85aa5a9fbc17ab3", "c10cbae98ca6aa27"),
    (SequencesConfig, {}, "938300f8ebd9e41f", "0a077891025d10dc"),
    (SequencesConfig, {"source": "selective_copying", "seed": 1},
     "27805f78df957695", "650a9b0dab804799"),
    (SequencesConfig, {"source": "induction_heads", "length": 16},
     "2ffddc2572ec946a", "90848cb61731ac19"),
    (SequencesConfig, {"source": "listops", "length": 100}, "1e2253a94eedef5b", "5231000b4054903a"),
    (SequencesConfig, {"source": "pixels", "images": "digits", "vocabulary": 16},
     "001489c6d0be9475", "2ec616108918dd08"),
    (ImageConfig, {"source": "digits"}, "566c49087d2fcdca", "7cc27df02a94b878"),
    (ImageConfig, {"source": "digits", "share": 0.3, "share_seed": 2, "split_seed": 1},
     "0001c9654b772a8a", "9f5356ed55980e09"),
    (EmojiConfig, {"path": "emoji", "test_share": 0.25, "validation_share": 0.125},
     "ff3f1a627b229828", "f7697b5ba77c1ed3"),
    (EmojiConfig, {"path": "emoji", "artist": "twitter", "max_concepts": 3},
     "54cbb28f8727ee85", "e2fe08dadaad4037"),
]  # fmt: skip


@pytest.mark.parametrize("make, settings, splits, whole", GOLDEN)
def test_splits_and_fingerprints_are_those_of_the_first_day(
    make, settings, splits, whole, folder, monkeypatch
):
    monkeypatch.chdir(folder)
    found = load(make(**MADE.get(make, {}) | settings))
    rows = [list(map(content, part)) for part in parts(found)]
    assert (short(rows), found.fingerprint()[:16]) == (splits, whole)


def test_the_examples_of_text_tasks_are_those_of_the_first_day():
    sources = {
        "pairs_source": "reverse", "sentiment_source": "generated",
        "question_source": "generated_spans", "documents_source": "patterns",
    }  # fmt: skip
    names = ("translate", "sentiment", "question", "next_sentence", "spans")
    found = text_tasks.load_tasks(text_tasks.TextTasksConfig(names, held_out=20, **sources))
    assert short([[s.train, s.validation, s.test] for s in found.values()]) == "6a67562fa92f2d78"
