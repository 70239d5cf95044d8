"""Log-mel features against the reference's own numbers, and against their definition."""

import jax
import numpy as np
import pytest

from transformer_lab.ops.spectrograms import HOP, RATE, WINDOW, log_mel, mel_filters

features = jax.jit(log_mel, static_argnums=1)


def sweep():
    """Three seconds: a tone that rises from 200 Hz, and a second one of 3 kHz after the first."""
    t = np.arange(3 * RATE) / RATE
    tone = 0.4 * np.sin(2 * np.pi * (200 * t + 600 * t**2))
    return (tone + 0.05 * np.cos(2 * np.pi * 3000 * t) * (t > 1)).astype(np.float32)


# Frames 0, 57, 150, 290 in the bands 0, 7, 30 and the last, of transformers 5.24.0's
# WhisperFeatureExtractor(feature_size=bins) on `sweep()`.
REFERENCE = {
    80: [
        [1.120668, 1.155944, 0.344860, -0.301793],
        [-0.596820, -0.596820, -0.355109, -0.596820],
        [-0.596820, -0.596820, -0.596820, -0.596820],
        [-0.596820, -0.596820, -0.596820, -0.596820],
    ],
    128: [
        [1.044909, 0.945097, 0.598993, -0.302265],
        [-0.546268, -0.546268, 0.098638, -0.546268],
        [-0.546268, -0.546268, -0.546268, -0.546268],
        [-0.546268, -0.546268, -0.546268, -0.546268],
    ],
}


@pytest.mark.parametrize("bins", REFERENCE)
def test_features_equal_the_reference_with_and_without_silence_behind_them(bins):
    sound = sweep()
    for padded in (sound, np.pad(sound, (0, 27 * RATE))):
        found = features(padded, bins)
        assert found.shape == (len(padded) // HOP, bins)
        chosen = found[np.array([0, 57, 150, 290])][:, np.array([0, 7, 30, bins - 1])]
        np.testing.assert_allclose(chosen, REFERENCE[bins], atol=1e-4)


def test_features_are_those_of_a_direct_sum():
    sound = np.random.default_rng(0).normal(0, 0.1, (2, 7 * HOP + 33))
    mirrored = np.pad(sound, ((0, 0), (WINDOW // 2,) * 2), mode="reflect")
    n = np.arange(WINDOW)
    waves = np.exp(-2j * np.pi * np.outer(np.arange(WINDOW // 2 + 1), n) / WINDOW)
    window = np.sin(np.pi * n / WINDOW) ** 2
    frames = np.stack([mirrored[:, i * HOP : i * HOP + WINDOW] for i in range(7)], axis=1)
    energy = np.abs((frames * window) @ waves.T) ** 2 @ mel_filters(80)
    logs = np.log10(energy)
    logs = np.maximum(logs, logs.max(axis=(1, 2), keepdims=True) - 8)
    found = features(sound.astype(np.float32), 80)
    np.testing.assert_allclose(found, logs / 4 + 1, atol=2e-5)
    np.testing.assert_allclose(features(sound[1].astype(np.float32), 80), found[1], atol=1e-6)


def test_silence_is_the_floor_and_a_loud_sound_raises_what_is_quiet():
    np.testing.assert_allclose(features(np.zeros(RATE, np.float32), 80), -1.5)
    sound = np.zeros(RATE, np.float32)
    sound[RATE // 2 :] = sweep()[: RATE // 2]
    found = np.asarray(features(sound, 80))
    np.testing.assert_allclose(found.max() - found.min(), 2.0, atol=1e-6)
    assert (found[:40] == found.min()).all()


@pytest.mark.parametrize("bins", [80, 128])
def test_bands_are_triangles_of_one_area_side_by_side(bins):
    filters = mel_filters(bins)
    assert filters.shape == (WINDOW // 2 + 1, bins) and (filters >= 0).all()
    assert (np.diff(filters.argmax(axis=0)) >= 0).all()
    wide = filters[:, -10:]  # over many frequencies, so that their sum is the area over 40 Hz
    np.testing.assert_allclose(wide.sum(axis=0) * RATE / WINDOW, 1.0, atol=0.01)
