"""One more family, task, source or Hugging Face family is one more file in a folder of its room."""

from pathlib import Path

import pytest

from transformer_lab import models, pretrained, tasks
from transformer_lab.data import sources
from transformer_lab.data.documents import DocumentsConfig, load_documents
from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.errors import LabError
from transformer_lab.kinds import kinds

FAMILY = '''
"""A decoder that lies as its own rules say."""
from dataclasses import dataclass
from transformer_lab.models import decoder

@dataclass(frozen=True)
class Config(decoder.DecoderConfig):
    """The decoder's settings."""

CONFIG, build, example_inputs = Config, decoder.build, decoder.example_inputs
RULES = [("query/kernel$", ("tensor", None))]
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder beside each room's own."""
    for room in (models, tasks, pretrained, sources):
        monkeypatch.setattr(room, "__path__", [*room.__path__, str(tmp_path)])
    return tmp_path


def test_a_family_in_another_folder_is_found_with_its_rules_and_named_where_one_is_misspelt(folder):
    (folder / "one_more.py").write_text(FAMILY)
    (folder / "no_family.py").write_text("def CONFIGURE(): pass\n")
    module = models.family("one_more")
    assert models.rules_of(module.CONFIG()) == [("query/kernel$", ("tensor", None))]
    assert models.rules_of(models.family("encoder_decoder").CONFIG()) == []
    with pytest.raises(LabError, match=r'model.kind = "one_mor" is unknown \(.*"one_more"'):
        models.family("one_mor")
    with pytest.raises(LabError, match='model.kind = "no_family" is unknown'):
        models.family("no_family")


def test_a_task_and_a_hugging_face_family_are_found_by_their_files(folder):
    (folder / "guessing.py").write_text("SECTIONS = {}\n")
    record = "from transformer_lab.pretrained.gpt2 import FAMILY as gpt2\nFAMILY = gpt2\n"
    (folder / "falcon.py").write_text(record)
    assert tasks.objective("guessing").SECTIONS == {}
    assert pretrained.family("falcon").kind == "decoder" and "falcon" in pretrained.families()


SOURCE = '''
"""Numbers in two languages, and as texts."""
from transformer_lab.data.splits import Found, Item

def pairs(config, report):
    return Found({"train": [Item(f"{i}", (f"number {i}", f"nombre {i}")) for i in range(9)]}, "own")

def documents(config, report):
    return Found({"train": [Item(f"{i}", f"text {i}") for i in range(9)]}, "own")
'''


def test_a_source_in_another_folder_is_split_by_the_kinds_of_examples_that_it_has(folder):
    (folder / "numbers.py").write_text(SOURCE)
    pairs = load_pairs(PairsConfig("numbers", validation_size=2, test_size=3))
    assert (
        pairs.report == {"read": 9, "train": 4, "validation": 2, "test": 3}
        and pairs.licence == "own"
    )
    assert {b for _, b in pairs.train + pairs.test + pairs.validation} == {
        f"nombre {i}" for i in range(9)
    }
    documents = load_documents(DocumentsConfig("numbers", test_share=0.34))
    assert documents.report == {"read": 9, "train": 5, "validation": 1, "test": 3}
    with pytest.raises(LabError, match=r'source = "number" is unknown \(.*"numbers"'):
        PairsConfig("number")
    with pytest.raises(LabError, match='config.data.source = "reviews" is unknown'):
        PairsConfig("reviews")  # which has labelled rows alone


def test_what_only_helps_a_kind_is_none():
    assert {"base", "bucketed", "building", "encoder_task", "labels", "naming", "scores"} & set(
        kinds("transformer_lab.tasks", "SECTIONS")
    ) == set()
    assert "costs" not in kinds("transformer_lab.models", "CONFIG")
    files = {path.stem for path in Path(pretrained.__file__).parent.glob("[!_]*.py")}
    helpers = """beside check core ct2 decoders encoders generation gguf gguf_file gguf_tokenizer
        hub keys names onnx peft running"""
    assert set(pretrained.families()) == files - set(helpers.split())
