"""Published peak rates of accelerators, and the memory that a device has."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from transformer_lab.errors import LESS_MEMORY, LabError

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """One device as the framework counts them; rates are peaks that no program exceeds."""

    name: str
    flops: float  # bfloat16 products, FLOP/s, dense
    memory: int  # bytes
    bandwidth: float  # bytes/s between memory and chip
    link: float  # bytes/s that it can send to its neighbours over all its links together


# TPU: the tables of cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}; a link's published bandwidth
# counts both directions. GPU: NVIDIA's datasheets of A100 80GB SXM, H100 SXM and H200 SXM, without
# sparsity; NVLink's published bandwidth counts both directions too.
CHIPS = {
    "TPU v4": Chip("TPU v4", 275e12, 32 * GIB, 1.228e12, 3.0e11),
    "TPU v5 lite": Chip("TPU v5e", 197e12, 16 * GIB, 8.19e11, 2.0e11),
    "TPU v5": Chip("TPU v5p", 459e12, 95 * GIB, 2.765e12, 6.0e11),
    "TPU v6 lite": Chip("TPU v6e", 918e12, 32 * GIB, 1.638e12, 4.0e11),
    "A100": Chip("A100", 312e12, 80 * 10**9, 2.039e12, 3.0e11),
    "H100": Chip("H100", 989e12, 80 * 10**9, 3.35e12, 4.5e11),
    "H200": Chip("H200", 989e12, 141 * 10**9, 4.8e12, 4.5e11),
}
ALIASES = {"TPU v5e": "TPU v5 lite", "TPU v5p": "TPU v5", "TPU v6e": "TPU v6 lite"}


def chip_of(device: Any) -> Chip | None:
    """The chip of a jax device, by its kind such as "TPU v5 lite" or "NVIDIA H100 80GB HBM3"; None
    where its rates are not known."""
    kind = device.device_kind
    kind = ALIASES.get(kind, kind)
    return CHIPS.get(kind) or next((CHIPS[word] for word in kind.split() if word in CHIPS), None)


def available() -> float:
    """The bytes that a device of this process can use: its own, or its share of the host's."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return float((device.memory_stats() or {}).get("bytes_limit", math.inf))
    limits = [math.inf]
    meminfo, group = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if meminfo.exists() and (found := re.search(r"MemAvailable:\s+(\d+)", meminfo.read_text())):
        limits.append(int(found[1]) * 1024)
    if group.exists() and (text := group.read_text().strip()).isdigit():
        limits.append(int(text))
    return min(limits) / jax.local_device_count()


def refuse_too_large(state: Any) -> None:
    """Raises: LabError if a train state and its gradient alone exceed a device's memory.

    `state` holds shapes with shardings. What else a step needs depends on the batch; `inspect
    --compile` measures it.
    """

    def of_a_device(tree):
        shapes = [(x.sharding.shard_shape(x.shape), x.dtype) for x in jax.tree.leaves(tree)]
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)

    need, have = of_a_device(state) + of_a_device(state.params), available()
    if need > have:
        raise LabError(
            f"a device would hold {need / 1e9:,.1f} GB of parameters, gradients and optimizer "
            f"state, and {have / 1e9:,.1f} GB are free: {LESS_MEMORY}"
        )
