"""Spoken sentences of Brown: nothing held out is in training, and recordings are made once."""

import os

import numpy as np
import pytest
import soundfile

from tests.data.test_brown import corpus
from transformer_lab.data import programs
from transformer_lab.data.fetch import cached
from transformer_lab.data.sources import espeak
from transformer_lab.data.spoken import SpokenConfig, load_spoken
from transformer_lab.errors import LabError

WORDS = ["the", "jury", "said", "it", "was", "late", "and", "cold", "in", "town"]
# A program with espeak-ng's arguments, which writes a tone of 0.5 s whatever it is to say.
PROGRAM = """#!/bin/sh
grep -q fail && {{ echo no such voice >&2; exit 1; }}
while [ "$1" != -w ]; do shift; done
cp '{tone}' "$2"
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The program above as the installed one, and an empty cache."""
    file = tmp_path / "bin" / "espeak-ng"
    file.parent.mkdir()
    tone = 0.5 * np.sin(np.arange(11_025) / 8)
    soundfile.write(tmp_path / "tone.wav", tone, 22_050)
    file.write_text(PROGRAM.format(tone=tmp_path / "tone.wav"), "utf-8")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{file.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TRANSFORMER_LAB_CACHE", str(tmp_path / "cache"))
    return file


def brown(folder, count=20, words=WORDS):
    """Documents of two sentences each."""
    rng, files = np.random.default_rng(0), {}
    for i in range(count):
        lines = [" ".join(f"{w}/nn" for w in rng.permutation(words)[:5]) + " ./." for _ in "ab"]
        files[f"ca{i:02}"] = "\n".join(lines) + "\n"
    return corpus(folder, cats="\n".join(f"{name} news" for name in files), **files)


def config(folder, **more):
    shares = {"validation_share": 0.1, "test_share": 0.2}
    return SpokenConfig(source="espeak", path=str(folder), **(shares | more))


def test_held_out_sentences_and_voices_are_not_trained_on(program, tmp_path, capfd):
    splits = load_spoken(config(brown(tmp_path)))
    parts = {name: getattr(splits, name) for name in ("train", "validation", "test")}
    texts = [{row.text for row in part} for part in parts.values()]
    assert list(map(len, parts.values())) == [28, 4, 8] == list(map(len, texts))
    assert not texts[0] & (texts[1] | texts[2]) and not texts[1] & texts[2]
    names = {split: set(espeak.VOICES[split].split()) for split in parts}
    assert not names["train"] & (names["validation"] | names["test"])
    assert not names["validation"] & names["test"]
    for split, rows in parts.items():
        for row in rows:
            said = espeak.utterance(row.text, espeak.VOICES[split].split())
            assert said.name == row.name and said.voice.partition("+")[2] in names[split]
    sound, rate = soundfile.read(parts["test"][0].path)
    assert rate == 16_000 and len(sound) == 8_000
    assert "speaking 40 of 40 sentences" in capfd.readouterr().err
    program.write_text("#!/bin/false\n", "utf-8")  # all is in the cache
    again = load_spoken(config(tmp_path))
    assert again.fingerprint() == splits.fingerprint() and not capfd.readouterr().err
    fewer = load_spoken(config(tmp_path, max_examples=5))
    assert len(fewer.train) == 5 and fewer.test == splits.test
    assert {row.text for row in fewer.train} <= texts[0]


def test_lengths_digits_and_repeats_are_counted(program, tmp_path):
    lines = ["it/pps was/bed late/jj ./.", "it/pps was/bed late/jj ./.", "in/in 1961/cd now/rb",
             "no/rb", " ".join(["late/jj"] * 20)]  # fmt: skip
    folder = corpus(tmp_path, cats="ca01 news", ca01="\n".join(lines) + "\n")
    splits = load_spoken(config(folder, validation_share=0.0, test_share=0.0))
    assert [row.text for row in splits.train] == ["it was late."]
    found = {name: splits.report[name] for name in ("length", "digits_or_symbols", "duplicate")}
    assert found == {"length": 2, "digits_or_symbols": 1, "duplicate": 1}


def test_a_program_that_fails_is_one_line(program, tmp_path):
    with pytest.raises(LabError, match=r"espeak-ng does not speak \(no such voice\): install it"):
        load_spoken(config(brown(tmp_path, 10, ["fail", *WORDS[:4]])))


def test_the_packages_speak_and_say_the_same_each_time(tmp_path, monkeypatch):
    if not all(map(cached, espeak.PACKAGES)):
        pytest.skip("the packages of espeak-ng are not in the cache")
    monkeypatch.setattr(programs.shutil, "which", lambda name: None)
    some = [espeak.utterance("It was late.", espeak.VOICES[s].split()) for s in ("train", "test")]
    sounds = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        espeak.speak(some, folder)
        sounds.append([soundfile.read(espeak.path_in(folder, one))[0] for one in some])
    for one, two in zip(*sounds, strict=True):
        np.testing.assert_array_equal(one, two)
        assert 0.4 < len(one) / 16_000 < 3 and np.abs(one).max() > 0.05
    assert not np.array_equal(*sounds[0])  # two voices
