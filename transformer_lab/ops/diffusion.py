"""Diffusion: how images are mixed with noise, what a model predicts, and the way back.

At the time t from 0 (data) to 1 (noise) an image is x_t = signal(t) x_0 + level(t) noise.

ddpm: signal^2 + level^2 = 1 in 1,000 steps, and the model predicts the noise (Ho 2020).
flow: signal = 1 - t and level = t, and it predicts the velocity noise - x_0 (Lipman 2022).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

PROCESSES = ("ddpm", "flow")
STEPS = 1000  # T of Ho 2020, section 4
BETAS = np.linspace(1e-4, 0.02, STEPS)  # the variance of the noise that each step adds
_KEPT = np.concatenate([[1.0], np.cumprod(1 - BETAS)])  # of the image's variance

Images = Float[Array, "b h w c"]
Times = Float[Array, "b"]
Predict = Callable[[Images, Times], Images]


def levels(process: str, times: Times) -> tuple[Float[Array, "b 1 1 1"], Float[Array, "b 1 1 1"]]:
    """The factors of the image and of the noise at each time (ddpm: Ho 2020, eq. 4)."""
    times = times[:, None, None, None]
    if process == "flow":
        return 1 - times, times
    number = jnp.round(times * STEPS).astype(jnp.int32)
    tables = np.sqrt([_KEPT, 1 - _KEPT]).astype(np.float32)
    return jnp.asarray(tables[0])[number], jnp.asarray(tables[1])[number]


def draw_times(process: str, key: Key[Array, ""], rows: int) -> Times:
    """Random times of training: uniform, of ddpm among the 1,000 steps."""
    if process == "flow":
        return jax.random.uniform(key, (rows,))
    return jax.random.randint(key, (rows,), 1, STEPS + 1) / STEPS


def mixed(process: str, clean: Images, noise: Images, times: Times) -> tuple[Images, Images]:
    """The noisy images x_t, and what the model is to predict of them."""
    signal, level = levels(process, times)
    return signal * clean + level * noise, noise - clean if process == "flow" else noise


def separated(process: str, noisy: Images, found: Images, times: Times) -> tuple[Images, Images]:
    """The clean images and the noise that a prediction implies; `mixed` mixes them to `noisy`."""
    signal, level = levels(process, times)
    if process == "flow":
        return noisy - level * found, noisy + signal * found
    return (noisy - level * found) / signal, found


def guided(
    conditional: Float[Array, "*b"], unconditional: Float[Array, "*b"], scale: float
) -> Float[Array, "*b"]:
    """The prediction extrapolated away from the one without a condition (Ho 2022, eq. 6, whose w is
    scale - 1). The scale 1 gives the conditional prediction, 0 the unconditional one."""
    return unconditional + scale * (conditional - unconditional)


def sample(
    process: str, predict: Predict, noise: Images, steps: int, clip: float = np.inf
) -> Images:
    """Images from noise in equal steps of time, without further randomness.

    A step separates x_t into image and noise and mixes them anew at the earlier time: that is DDIM
    (Song 2021, eq. 12 with sigma = 0), and for the flow Euler's method, x + (s - t) velocity. The
    estimated images are clipped to [-clip, clip] on the way.
    """
    times = jnp.linspace(1.0, 0.0, steps + 1)

    def step(x, both):
        now, then = (jnp.full(len(x), t) for t in both)
        clean, level = separated(process, x, predict(x, now), now)
        clean = jnp.clip(clean, -clip, clip)
        return mixed(process, clean, level, then)[0], None

    return jax.lax.scan(step, noise, (times[:-1], times[1:]))[0]
