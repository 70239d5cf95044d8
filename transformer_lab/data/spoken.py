"""Loads recordings of speech with their transcripts, from any source."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from transformer_lab.data.splits import SPLITS, SourceConfig, Splits, split_by_share
from transformer_lab.errors import LabError, known


class Spoken(NamedTuple):
    """A file of audio, its text, and its name in the set, wherever the files are."""

    path: str
    text: str
    name: str


@dataclass(frozen=True)
class SpokenConfig(SourceConfig):
    """Settings of recordings: the source, its tables and columns, the splits and a limit."""

    source: str = "asterisk"  # asterisk | described_stamps | espeak | fillets | files
    language: str = "en"  # what is spoken; of a source with several languages, which is read
    translated: bool = False  # texts are the English translations, of a source that has them
    path: str = ""  # local copy of the set, or the user's table or folder of tables
    audio_column: str = "audio"  # of a table, by its header: the file, from the table's folder
    text_column: str = "text"  # the column with what is said
    validation_share: float = 0.1  # of the recordings
    test_share: float = 0.1  # held out for the final scores
    max_examples: int = 0  # training recordings at most (0 = all); held-out ones stay the same
    max_characters: int = 60  # espeak: of a sentence; longer ones are not spoken
    split_seed: int = 0  # another number holds out others

    KIND = "spoken"


class SpokenSplits(Splits):
    """The recordings of each split, whose fingerprint does not depend on their folder."""

    def fingerprint(self) -> str:
        """A SHA-256 of the names and texts of all splits, wherever the files are."""
        names = [[[row.name, row.text] for row in getattr(self, split)] for split in SPLITS]
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def load_spoken(config: SpokenConfig) -> SpokenSplits:
    """The recordings of a config, fetched when first used; the same for every run.

    No training text is in another split."""
    name = attrgetter("name")
    found = split_by_share(config, "max_examples", name, name)
    return SpokenSplits(found.train, found.validation, found.test, found.report, found.licence)


def spoken_in(config: SpokenConfig, languages: Iterable[str], translates: bool = False) -> str:
    """The language of a config. Raises: LabError for one that the source lacks, or for English
    translations where it has none."""
    if config.translated and not translates:
        raise LabError(f"config.data.translated: {config.source} has no English translations")
    return known(f"config.data.language, for {config.source}: ", config.language, languages)
