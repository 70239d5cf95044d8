"""Audio files of several kinds as the same samples, and files that are none in one line."""

import tracemalloc

import numpy as np
import pytest

from transformer_lab.data.audio import BLOCK, AudioFile
from transformer_lab.errors import LabError

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("soxr")
RATE = 16_000


def read_audio(path, rate):
    """All samples of a file, in parts."""
    file, parts = AudioFile(path, rate), []
    while len(part := file.take(sum(map(len, parts)), 1 << 20)):
        parts.append(part)
    return np.concatenate(parts)


def tone(rate, seconds=1.0, hertz=440.0):
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)


def write(path, samples, rate=RATE, **more):
    soundfile.write(path, samples, rate, **more)
    return path


@pytest.mark.parametrize(
    ("ending", "subtype", "error"),
    [("wav", "PCM_U8", 1 / 128), ("wav", "PCM_16", 1e-4), ("wav", "FLOAT", 1e-7),
     ("flac", "PCM_24", 1e-6), ("ogg", "VORBIS", 0.05)],
)  # fmt: skip
def test_every_format_gives_the_samples(tmp_path, ending, subtype, error):
    path = write(tmp_path / f"a.{ending}", tone(RATE), subtype=subtype)
    found = read_audio(path, RATE)
    assert found.dtype == np.float32 and found.shape == (RATE,)
    np.testing.assert_allclose(found[100:-100], tone(RATE)[100:-100], atol=error)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 96_000])
def test_another_rate_is_resampled_to_the_same_tone(tmp_path, rate):
    found = read_audio(write(tmp_path / "a.wav", tone(rate), rate, subtype="FLOAT"), RATE)
    assert len(found) == RATE
    np.testing.assert_allclose(found[500:-500], tone(RATE)[500:-500], atol=1e-3)


def test_what_a_lower_rate_cannot_hold_is_filtered_out(tmp_path):
    high = tone(96_000, hertz=20_000.0)
    found = read_audio(write(tmp_path / "a.wav", high, 96_000, subtype="FLOAT"), RATE)
    assert np.abs(found[500:-500]).max() < 1e-4


def test_several_channels_become_their_mean(tmp_path):
    both = np.stack([tone(RATE), np.full(RATE, 0.25)], axis=1)
    found = read_audio(write(tmp_path / "a.wav", both, subtype="FLOAT"), RATE)
    np.testing.assert_allclose(found, both.mean(axis=1), atol=1e-7)


@pytest.mark.parametrize("rate", [RATE, 8_000])
def test_stretches_are_those_of_the_whole_also_behind_gaps_and_past_the_end(tmp_path, rate):
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 3 * BLOCK + 17)
    path = write(tmp_path / "a.wav", noise, rate, subtype="FLOAT")
    whole, file = read_audio(path, RATE), AudioFile(path, RATE)
    for start, count in ((0, 10), (5, BLOCK), (2 * BLOCK + 3, 100), (len(whole) - 4, 50)):
        np.testing.assert_array_equal(file.take(start, count), whole[start : start + count])
    assert len(file.take(len(whole) + 99, 10)) == 0


def test_a_long_file_takes_no_more_memory_than_a_short_one(tmp_path):
    peaks = []
    for minutes in (2, 10):
        path = write(tmp_path / f"{minutes}.wav", np.zeros(minutes * 60 * 8_000), 8_000)
        file, start = AudioFile(path, RATE), 0
        tracemalloc.start()
        while len(file.take(start, 30 * RATE)):
            start += 20 * RATE
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert start // (20 * RATE) == minutes * 3
    assert peaks[1] < 1.1 * peaks[0] < 2e7


def test_what_is_no_audio_is_one_line_that_names_the_file(tmp_path):
    cases = {"missing.wav": None, "text.wav": b"no audio at all", "empty.wav": b"", "folder": ""}
    for name, content in cases.items():
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            path.mkdir()
        with pytest.raises(LabError, match=name) as error:
            read_audio(path, RATE)
        assert "\n" not in str(error.value)
    with pytest.raises(LabError, match="no sample"):
        read_audio(write(tmp_path / "nothing.wav", np.zeros(0)), RATE)
    with pytest.raises(LabError, match="no numbers"):
        bad = np.array([0.0, np.nan, 0.1])
        read_audio(write(tmp_path / "nan.wav", bad, subtype="FLOAT"), RATE)
