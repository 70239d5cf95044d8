"""What any model costs: its parameters, memory, FLOPs and device-days, by arithmetic alone."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np

from transformer_lab.errors import LabError
from transformer_lab.layers.costs import idle_parameters
from transformer_lab.models import parameter_shapes, said
from transformer_lab.ops.losses import STATISTICS


def parameter_groups(kind: str, config: Any) -> dict[str, int]:
    """The number of parameters under each top-level name of the tree, without running statistics.

    A family whose stacks have equal layers has a table `STACKS` of the setting that counts each
    group's layers, such as {"encoder": "layers"}: of such a stack one layer is traced, or one
    period of its `layer_kinds`.
    """
    stacks = said(config, "STACKS", {})
    parts = {group: config.decoder if "decoder_" in s else config for group, s in stacks.items()}
    periods = {group: len(part.layer_kinds) or 1 for group, part in parts.items()}
    fewer = {setting: periods[group] for group, setting in stacks.items()}
    shapes = parameter_shapes(kind, replace(config, **fewer))
    groups = {name: count(tree) for name, tree in shapes.items() if name != STATISTICS}
    for group, period in periods.items():
        each = [count(shapes[group][f"layer_{i}"]) for i in range(period)]
        rounds, rest = divmod(parts[group].layers, period)
        groups[group] += (rounds - 1) * sum(each) + sum(each[:rest])
    return groups


def flops_a_token(config: Any, groups: dict[str, int]) -> float | None:
    """Training FLOPs a token, as `models.flops_a_token`, from the parameters of each group.

    For two stacks it is the cost of one token in each. None where a group mixes embeddings with
    other parameters.
    """
    if own := said(config, "training_flops"):
        return float(own(config))
    if not said(config, "STACKS"):
        return None
    matrices = sum(size for name, size in groups.items() if "embedding" not in name)
    return 6.0 * (matrices - idle_parameters(config))


@cache
def parameters(kind: str, config: Any) -> int:
    """The number of a model's parameters; each config is counted only once in a process."""
    return count(parameter_shapes(kind, config))


def width_near(kind: str, config_of: Callable[[int], Any], aim: int, multiple: int = 2) -> int:
    """The width, a multiple of `multiple`, at which a model has nearest to `aim` parameters.

    `config_of` gives the family's config of a width. More width must mean more parameters, about
    as a polynomial of the second degree, from whose root the search goes on step by step.
    """
    found = lambda width: parameters(kind, config_of(width))  # noqa: E731
    some = [multiple * n for n in (8, 16, 32)]
    a, b, c = np.polyfit(some, [found(width) - aim for width in some], 2)
    root = (-b + max(b * b - 4 * a * c, 0) ** 0.5) / (2 * a) if a > 1e-6 else -c / b
    width = max(round(root / multiple), 1) * multiple
    while True:
        near = [n for n in (width, width - multiple, width + multiple) if n > 0]
        best = min(near, key=lambda n: abs(found(n) - aim))
        if best == width:
            return width
        width = best


def device_days(
    flops_per_token: int | float,
    tokens: float,
    devices: int,
    peak_flops: float,
    utilisation: float,
) -> tuple[float, float]:
    """Device-days of a training run, and days of wall-clock time with so many devices.

    `utilisation` is the share of `peak_flops`, one device's FLOP/s, that the model's own FLOPs make
    (Chowdhery 2022, section 4.1). 1e20 FLOPs at 40 % of 3e14 FLOP/s take 9.6 device-days.
    """
    if min(tokens, devices, peak_flops) <= 0:
        raise LabError("tokens, devices and peak_tflops must be more than 0")
    if not 0 < utilisation <= 1:
        raise LabError(f"utilisation = {utilisation} is not in (0, 1]")
    days = flops_per_token * tokens / (peak_flops * utilisation) / 86_400
    return days, days / devices


def count(tree: Any) -> int:
    """The number of elements in a tree of arrays or shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
