"""Learning-rate schedules and optimizers, built from optax."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from transformer_lab.errors import LabError, known
from transformer_lab.ops.stacked import LAYERS, of_paths
from transformer_lab.training.config import OptimizerConfig
from transformer_lab.training.mesh import PART, path_of

SCHEDULES = ("inverse_sqrt", "flat_inverse_sqrt", "cosine", "linear", "constant")
OPTIMIZERS = ("adam", "sgd", "adafactor", "lion", "muon")
Schedule = Callable[[Any], Any]

LAYER = re.compile(r"(.*?)layer_(\d+)/")
EXPERTS = re.compile(r"(^|/)feed_forward/(up|gate|down)$")  # arrays with a matrix for each expert
# The parameters of a model's input, below all layers.
BELOW = re.compile(r"(\w*embedding(_in|_norm)?|\w*positions)/|\w+_token$")


def schedule(config: OptimizerConfig, steps: int) -> Schedule:
    """The learning rate as a function of the step, 1 .. `steps`: warm-up, then decay.

    inverse_sqrt: peak * min(step / warmup, sqrt(warmup / step)), which with the peak (width *
    warmup)^-0.5 is Vaswani 2017, eq. 3. flat_inverse_sqrt does not rise: it is at the peak for the
    steps of the warm-up, then as the other (Raffel 2020, section 3.1.2). cosine (Loshchilov 2017)
    and linear end at end_factor * peak in the last step.

    With a peak of 1 and 100 steps of warm-up, inverse_sqrt gives 0.5 at step 50, 1 at step 100 and
    0.5 at step 400.
    """
    known("optimizer.schedule = ", config.schedule, SCHEDULES)
    warmup, peak = max(config.warmup_steps, 1), config.learning_rate

    def rate(step):
        step = jnp.asarray(step, jnp.float32)
        rising = jnp.minimum(step / warmup, 1.0)
        if config.schedule == "flat_inverse_sqrt":
            rising = 1.0
        # sqrt(warmup / step) is 1 at the end of the warm-up, so the peak is reached there.
        if config.schedule.endswith("inverse_sqrt"):
            return peak * rising * jnp.sqrt(warmup / jnp.maximum(step, warmup))
        if config.schedule == "constant":
            return peak * rising
        done = jnp.clip((step - warmup) / max(steps - warmup, 1), 0.0, 1.0)
        left = 1.0 - done if config.schedule == "linear" else 0.5 * (1 + jnp.cos(jnp.pi * done))
        return peak * rising * (config.end_factor + (1 - config.end_factor) * left)

    return rate


def fitted(config: OptimizerConfig, steps: int) -> OptimizerConfig:
    """The settings with a warm-up that fits a run of so many steps: one of more than half of them
    becomes a tenth. Of 10 steps a warm-up of 50 would leave the rate at a fifth of its peak."""
    if not steps or 2 * config.warmup_steps <= steps:
        return config
    return replace(config, warmup_steps=steps // 10)


def make_optimizer(config: OptimizerConfig, rate: Schedule) -> optax.GradientTransformation:
    """The chain: clip, optimizer, decoupled weight decay, learning rate, its multipliers."""
    known("optimizer.name = ", config.name, OPTIMIZERS)
    scale = {
        "adam": lambda: optax.scale_by_adam(config.b1, config.b2, config.epsilon),
        "sgd": lambda: optax.trace(config.b1) if config.b1 else optax.identity(),
        "adafactor": lambda: optax.chain(  # steps relative to a parameter (Shazeer 2018, sect. 8)
            optax.scale_by_factored_rms(),
            optax.clip_by_block_rms(1.0),
            optax.scale_by_param_block_rms(),
        ),
        "lion": lambda: optax.scale_by_lion(config.b1, config.b2),
        "muon": lambda: _muon(config),
    }[config.name]()
    parts = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    parts.append(scale)
    if config.weight_decay:
        parts.append(_decay(config.weight_decay, config.weight_decay_pattern))
    # Weight decay comes before the learning rate, which thus scales it as well (AdamW).
    parts.append(optax.scale_by_schedule(lambda count: -rate(count + 1)))
    if config.multipliers or config.layer_decay != 1:
        parts.append(_scale_by_path(parse_multipliers(config.multipliers), config.layer_decay))
    return optax.chain(*parts)


def _muon(config: OptimizerConfig) -> optax.GradientTransformation:
    """Orthogonalised momentum for kernels (Jordan 2024), Nesterov's Adam for all else.

    Both have the RMS of Adam's updates (Liu 2025, eq. 4), so that one learning rate serves them.
    Where one array holds the kernels of many layers or experts, each is orthogonalised by itself.
    """

    def kernels(params):
        def dimensions(key_path, x):
            path = PART.sub("", path_of(key_path))
            experts = EXPERTS.search(path) is not None
            matrix = x.ndim - (f"/{LAYERS}/" in path) - experts == 2 and (
                experts or path.endswith("kernel")
            )
            return optax.contrib.MuonDimensionNumbers(x.ndim - 2, x.ndim - 1) if matrix else None

        return jax.tree_util.tree_map_with_path(dimensions, params)

    muon = optax.contrib.muon(
        1.0,
        adam_learning_rate=1.0,
        consistent_rms=0.2,
        adam_b1=config.b1,
        adam_b2=config.b2,
        muon_weight_dimension_numbers=kernels,
    )
    return optax.chain(muon, optax.scale(-1.0))  # the learning rate's sign is the chain's


def parse_multipliers(text: str) -> list[tuple[str, float]]:
    """Reads factors on the learning rate, written as "regex=0.1;regex=2"."""
    rules = []
    for rule in filter(None, text.split(";")):
        pattern, _, factor = rule.rpartition("=")
        try:
            value = float(factor)
        except ValueError:
            value = -1.0
        if not pattern.strip() or not 0 <= value < float("inf"):
            raise LabError(f'optimizer.multipliers: "{rule}" is not "regex=factor"')
        rules.append((pattern.strip(), value))
    return rules


def rate_factors(params: Any, multipliers: list[tuple[str, float]], layer_decay: float) -> Any:
    """The factor on each array's learning rate; for stacked layers [layers, 1, ...].

    layer_decay: of n layers the top one gets decay, the lowest decay^n, the input below them
    decay^(n + 1), all else 1 (after Howard 2018, section 3.2). The top is the highest layer that
    trains. Raises: LabError for a rule that is found in no path.
    """
    paths = canonical_paths(params)
    for pattern, _ in multipliers:
        if not any(re.search(pattern, path) for path in paths):
            raise LabError(f'optimizer.multipliers: "{pattern}" is found in no parameter\'s path')
    layers = stack_sizes(paths)

    def factor(path):
        found = (f for pattern, f in multipliers if re.search(pattern, path))
        depth = 0
        if layer := LAYER.match(path):
            depth = layers[layer[1]] - int(layer[2])
        elif BELOW.match(path):
            depth = 1 + max(layers.values(), default=0)
        return next(found, 1.0) * layer_decay**depth

    return by_path(factor, params)


def by_path(function: Callable[[str], float], params: Any) -> Any:
    """The tree of function(path) for each array; for stacked layers of each layer's own path."""
    place = lambda key_path, leaf: of_paths(function, path_of(key_path), leaf)  # noqa: E731
    return jax.tree_util.tree_map_with_path(place, params)


def canonical_paths(params: Any) -> list[str]:
    """The path of every parameter, with those of stacked layers one by one."""
    paths: list[str] = []
    by_path(lambda path: paths.append(path) or 0.0, params)
    return paths


def stack_sizes(paths: Iterable[str]) -> dict[str, int]:
    """The number of layers of each stack, by the part of the path before `layer_0`."""
    sizes: dict[str, int] = {}
    for layer in filter(None, map(LAYER.match, paths)):
        sizes[layer[1]] = max(sizes.get(layer[1], 0), int(layer[2]) + 1)
    return sizes


def _scale_by_path(
    multipliers: list[tuple[str, float]], layer_decay: float
) -> optax.GradientTransformation:
    def init(params):
        rate_factors(params, multipliers, layer_decay)  # refuses a wrong rule before the first step
        return optax.EmptyState()

    def update(updates, state, params=None):
        factors = rate_factors(updates, multipliers, layer_decay)
        return jax.tree.map(lambda u, f: u * f, updates, factors), state

    return optax.GradientTransformation(init, update)


def path_mask(params: Any, pattern: str) -> Any:
    """True for arrays in whose path (an adapted kernel's: the kernel's) the pattern is found.
    Raises: LabError if it is found in none."""
    found = lambda path: re.search(pattern, PART.sub("", path)) is not None  # noqa: E731
    if not any(map(found, canonical_paths(params))):
        raise LabError(f'the pattern "{pattern}" matches no parameter')
    return by_path(found, params)


def _decay(rate: float, pattern: str) -> optax.GradientTransformation:
    """Weight decay: adds rate * parameter to the updates of arrays whose path has the pattern."""

    def init(params):
        path_mask(params, pattern)  # refuses a wrong pattern before the first step
        return optax.EmptyState()

    def update(updates, state, params):
        add = lambda u, p, on: u if on is False else u + rate * on * p  # noqa: E731
        return jax.tree.map(add, updates, params, path_mask(params, pattern)), state

    return optax.GradientTransformation(init, update)
