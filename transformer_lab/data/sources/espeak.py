"""Sentences of the Brown corpus, spoken by eSpeak NG in many voices (apt: `espeak-ng`).

No sentence and no voice of a held-out split is in another one. Each sentence is spoken once, in an
accent, a voice, a speed and a pitch that follow from its text. The recordings are made when they
are first asked for, and kept in the cache."""

import hashlib
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_lab.data.audio import AudioFile, write
from transformer_lab.data.fetch import cache_dir, folders
from transformer_lab.data.programs import program
from transformer_lab.data.sources import brown
from transformer_lab.data.splits import SPLITS, Found, Item, Report, key, shuffled
from transformer_lab.data.spoken import Spoken
from transformer_lab.errors import LabError

PACKAGES = "espeak-ng", "libespeak-ng1", "espeak-ng-data", "libpcaudio0", "libsonic0"
LICENCE = f"{brown.LICENCE}; the voices are eSpeak NG's (GPL-3+)"
RATE = 16_000  # samples a second in the cache
# "en" is British; with its other name, "en-gb", the program would ignore the variant.
ACCENTS = "en-us", "en-us-nyc", "en", "en-gb-x-rp", "en-gb-scotland"
# Variants of eSpeak NG that speak clearly: neither whispers nor effects.
VOICES = {
    "train": (
        "Alex Alicia Andrea Andy Annie Denis Diogo Gene Gene2 Henrique Hugo Jacky Lee Marco Mario "
        "Michael Mike Nguyen RicishayMax RicishayMax2 adam anika antonio aunty boris caleb david "
        "ed edward edward2 f1 f2 f3 f4 iven iven2 iven3 john kaukovalta klatt klatt2 klatt3 m1 m2 "
        "m3 m4 m5 m6 marcelo max michel miguel norbert paul pedro rob robert sandro shelby steph "
        "steph2 travis victor"
    ),
    "validation": "belinda quincy m7 benjamin",
    "test": "f5 linda zac m8 pablo iven4 klatt4 grandma",
}
SAYABLE = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ,.;:?!'\"()-")


class Utterance(NamedTuple):
    """What is said, and how: voice as accent+variant, words a minute, and pitch from 0 to 99."""

    text: str
    voice: str
    speed: int
    pitch: int

    @property
    def name(self) -> str:
        """The name of its recording, which follows from all that decides its sound."""
        return hashlib.sha256("\0".join(map(str, self)).encode()).hexdigest()[:24]


def spoken(config: Any, report: Report) -> Found:
    """The sentences of 10 characters to `config.max_characters` without digits and symbols.

    `config.path` is a local copy of the Brown corpus; of its documents `config.test_share` and
    `config.validation_share` are held out."""
    documents = brown.read(*folders(config.path, brown.PACKAGE))
    order = shuffled([document.name for document in documents], config.split_seed)
    held = {"test": config.test_share, "validation": config.validation_share}
    split_of, first = dict.fromkeys(order, "train"), 0
    for split, share in held.items():
        count = round(share * len(order))
        split_of |= dict.fromkeys(order[first : first + count], split)
        first += count
    texts: dict[str, list[str]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for document in sorted(documents, key=lambda d: SPLITS.index(split_of[d.name]), reverse=True):
        for sentence in document.sentences:
            text = brown.detokenise([word for word, _ in sentence])
            if not 10 <= len(text) <= config.max_characters:
                report["length"] += 1
            elif not set(text) <= SAYABLE:
                report["digits_or_symbols"] += 1
            elif key(text) in seen:
                report["duplicate"] += 1
            else:
                seen.add(key(text))
                texts[split_of[document.name]].append(text)
    if config.max_examples:
        some = shuffled(texts["train"], config.split_seed)[: config.max_examples]
        report["over_max_examples"] += len(texts["train"]) - len(some)
        texts["train"] = some
    voices = {split: VOICES[split].split() for split in SPLITS}
    said = {split: [utterance(text, voices[split]) for text in texts[split]] for split in SPLITS}
    folder = cache_dir() / "spoken-espeak"
    speak([one for split in SPLITS for one in said[split]], folder)
    items = {
        split: [
            Item(one.text, Spoken(str(path_in(folder, one)), one.text, one.name)) for one in some
        ]
        for split, some in said.items()
    }
    return Found(items, LICENCE)


def utterance(text: str, voices: list[str]) -> Utterance:
    """How a text is said: drawn from its own hash, so that other texts change nothing."""
    rng = np.random.default_rng(list(hashlib.sha256(text.encode()).digest()))
    voice = f"{ACCENTS[rng.integers(len(ACCENTS))]}+{voices[rng.integers(len(voices))]}"
    return Utterance(text, voice, int(rng.integers(140, 201)), int(rng.integers(35, 66)))


def path_in(folder: Path, one: Utterance) -> Path:
    """The recording's file in the cache, one of 256 subfolders."""
    return folder / one.name[:2] / f"{one.name}.flac"


def speak(utterances: list[Utterance], folder: Path) -> None:
    """Makes the recordings that the folder lacks, on all cores, and says how far it is."""
    missing = [one for one in utterances if not path_in(folder, one).is_file()]
    if not missing:
        return
    with (
        program("espeak-ng", *PACKAGES) as (path, environment, files),
        ThreadPoolExecutor(os.cpu_count()) as threads,
    ):
        if data := [file.parent for file in files if file.name == "phontab"]:
            environment["ESPEAK_DATA_PATH"] = str(data[0])
        calls = (threads.submit(_speak, one, folder, path, environment) for one in missing)
        for count, call in enumerate(list(calls), 1):
            call.result()
            if count % 1000 == 0 or count == len(missing):
                done = f"{count:,} of {len(missing):,}"
                print(f"speaking {done} sentences into {folder}", file=sys.stderr, flush=True)


def _speak(one: Utterance, folder: Path, path: str, environment: dict[str, str]) -> None:
    target = path_in(folder, one)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = Path(work) / "said.wav"
        settings = ["-v", one.voice, "-s", str(one.speed), "-p", str(one.pitch), "-z"]
        command = [path, *settings, "--stdin", "-w", str(made)]
        done = subprocess.run(
            command, input=one.text.encode(), capture_output=True, env=environment
        )
        if done.returncode or not made.is_file():
            words = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            reason = words[0] if words else f"exit code {done.returncode}"
            raise LabError(f"espeak-ng does not speak ({reason}): install it, such as by apt-get")
        sound = AudioFile(made, RATE).take(0, 60 * RATE)
        write(Path(work) / "said.flac", sound, RATE)
        (Path(work) / "said.flac").rename(target)  # last, so that no recording is incomplete
