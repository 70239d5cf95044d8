"""Pictures with their descriptions, written and spoken in several languages."""

from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from transformer_lab.data.splits import SourceConfig, split_by_share
from transformer_lab.data.spoken import SpokenSplits
from transformer_lab.errors import LabError


class Described(NamedTuple):
    """A picture's name in the set and its file; by language its description, and the file of a
    recording of it."""

    name: str
    picture: str
    text: dict[str, str]
    sounds: dict[str, str]


@dataclass(frozen=True)
class DescribedConfig(SourceConfig):
    """Settings of described pictures: the source, the languages, and which are held out."""

    source: str = "described_stamps"  # where the pictures come from
    path: str = ""  # a folder with the package unpacked
    languages: tuple[str, ...] = ("fr", "ru")  # of the descriptions; the first names the groups
    validation_share: float = 0.0  # 0: no validation is made
    test_share: float = 0.2  # of the pictures, held out with all that are described alike
    max_examples: int = 0  # training pictures at most (0 = all); held-out ones stay the same
    split_seed: int = 0  # another number holds out others

    KIND = "described"

    def __post_init__(self):
        super().__post_init__()
        if not self.languages:
            raise LabError("config.data.languages needs one")


def load_described(config: DescribedConfig) -> SpokenSplits:
    """The pictures of a config, fetched when first used; the same for every run. No description in
    the first language is in two splits."""
    name = attrgetter("name")
    found = split_by_share(config, "max_examples", name, name)
    return SpokenSplits(found.train, found.validation, found.test, found.report, found.licence)
