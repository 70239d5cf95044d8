"""Log-mel spectrograms of audio, as Whisper takes them (Radford 2023, section 2.2)."""

from functools import cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

RATE = 16_000  # samples a second
WINDOW = 400  # samples of a frame: 25 ms
HOP = 160  # samples from one frame to the next: 10 ms
FLOOR = 1e-10  # the least energy that has a logarithm
RANGE = 8.0  # powers of ten below the loudest energy, where values are cut off
LINEAR = 1000.0  # Hz, up to which Slaney's mel scale is linear
MEL = 200.0 / 3  # Hz that a mel has in the linear part
STEP = np.log(6.4) / 27  # what a mel above adds to the logarithm of the frequency


def log_mel(samples: Float[Array, "*b n"], bins: int) -> Float[Array, "*b f m"]:
    """The logarithm of the energy in each of `bins` bands of each frame, about -1 to 1.5.

    Samples lie in -1..1, RATE a second. Frame i is centred at sample i * HOP, weighted by Hann's
    window, and the audio is mirrored at its ends; there are n // HOP frames. Values more than
    RANGE below the greatest of all the frames are raised to it.
    """
    half = WINDOW // 2
    pads = [(0, 0)] * (samples.ndim - 1) + [(half, half)]
    padded = jnp.pad(samples.astype(jnp.float32), pads, mode="reflect")
    starts = HOP * jnp.arange(samples.shape[-1] // HOP)
    frames = padded[..., starts[:, None] + jnp.arange(WINDOW)]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    # |STFT|^2, the mel bands' energies, then log10, clipped and moved to about -1 .. 1.5.
    power = jnp.abs(jnp.fft.rfft(frames * hann.astype(np.float32))) ** 2
    energy = jnp.einsum("...fk,km->...fm", power, mel_filters(bins), precision="highest")
    found = jnp.log10(jnp.maximum(energy, FLOOR))
    found = jnp.maximum(found, found.max(axis=(-2, -1), keepdims=True) - RANGE)
    return (found + 4) / 4


@cache
def mel_filters(bins: int) -> Float[np.ndarray, "k m"]:
    """The weight of each of the WINDOW // 2 + 1 frequencies in each mel band.

    Triangles whose corners lie at even distances on Slaney's mel scale from 0 to RATE / 2, each
    with the area 2 over frequency in Hz (Slaney 1998, Auditory Toolbox).
    """
    top = LINEAR / MEL + np.log(RATE / 2 / LINEAR) / STEP
    mels = np.linspace(0, top, bins + 2)
    above = LINEAR * np.exp(STEP * np.maximum(mels - LINEAR / MEL, 0))
    corners = np.where(mels < LINEAR / MEL, MEL * mels, above)
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    rising = (frequencies - left) / (middle - left)
    falling = (right - frequencies) / (right - middle)
    triangles = np.maximum(0, np.minimum(rising, falling))
    return (triangles * 2 / (right - left)).astype(np.float32)
