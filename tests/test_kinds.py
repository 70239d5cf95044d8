"""One more family, task or Hugging Face family is one more file, in any folder of its room."""

import pytest

from transformer_lab import models, pretrained, tasks
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
    for room in (models, tasks, pretrained):
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


def test_what_only_helps_a_kind_is_none():
    assert {"base", "scores", "reading", "bucketed"} & set(
        kinds("transformer_lab.tasks", "SECTIONS")
    ) == set()
    assert "costs" not in kinds("transformer_lab.models", "CONFIG")
    assert len(pretrained.families()) == 17
