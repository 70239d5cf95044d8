"""Spectrograms of recordings: computed once for equal files, each as it is alone."""

import os

import numpy as np
import pytest
import soundfile

from transformer_lab.data.ragged import Rows
from transformer_lab.data.spectra import ROWS, spectra
from transformer_lab.errors import LabError

RATE = 1000  # so that a frame is ten samples


class Compute:
    """A spectrogram of two bands: each frame's first sample, and the sum of the next frame's."""

    calls = 0

    def __call__(self, sound):
        self.calls += 1
        frames = sound.reshape(len(sound), -1, 10)
        after = np.pad(frames[:, 1:], ((0, 0), (0, 1), (0, 0))).sum(axis=2)
        return np.stack([frames[:, :, 0], after], axis=-1)


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_LAB_CACHE", str(tmp_path / "cache"))
    made = []
    for i in range(ROWS + 2):
        made.append(str(tmp_path / f"{i}.wav"))
        soundfile.write(made[-1], np.full(25 + 10 * i, 0.25), RATE)
    return made


def test_each_has_its_frames_and_zeros_behind_it_whatever_is_computed_beside_it(paths):
    compute = Compute()
    found = spectra(paths, 2, RATE, compute)
    assert isinstance(found, Rows) and len(found) == ROWS + 2 and compute.calls == 2
    assert found.lengths().tolist() == [3 + i for i in range(ROWS + 2)]
    expected = [[0.25, 2.5], [0.25, 1.25], [0.25, 0.0]]  # the last frame is half full
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found.take(np.array([5, 0]))[1], expected)
    assert found[0].dtype == np.float32


def test_they_are_computed_once_until_a_file_changes(paths):
    compute = Compute()
    first, again = (spectra(paths, 2, RATE, compute) for _ in range(2))
    assert compute.calls == 2
    np.testing.assert_array_equal(again[3], first[3])
    soundfile.write(paths[0], np.full(25, 0.5), RATE)
    os.utime(paths[0], ns=(1, 1))
    assert spectra(paths, 2, RATE, compute)[0][0, 0] == 0.5 and compute.calls == 4


def test_none_at_all_and_a_missing_file(paths, tmp_path):
    assert len(spectra([], 2, RATE, Compute())) == 0
    with pytest.raises(LabError, match="gone.wav: no such file"):
        spectra([str(tmp_path / "gone.wav")], 2, RATE, Compute())


def test_a_process_that_was_ended_is_continued(paths, monkeypatch):
    """With three at once, progress is kept every so often; the second attempt begins there."""
    monkeypatch.setattr("transformer_lab.data.spectra.ROWS", 3)
    monkeypatch.setattr("transformer_lab.data.spectra.KEPT", 2)
    whole, compute = Compute(), Compute()

    def stopped(sound):
        if compute.calls == 3:
            raise KeyboardInterrupt
        return compute(sound)

    with pytest.raises(KeyboardInterrupt):
        spectra(paths, 2, RATE, stopped)
    found = spectra(paths, 2, RATE, whole)
    assert (compute.calls, whole.calls) == (3, 4)  # of 6: the third was not kept
    for i in range(len(paths)):
        assert found[i][-1].tolist() == [0.25, 0.0] and (found[i][:-1, 0] == 0.25).all()
