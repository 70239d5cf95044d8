"""Published peak rates of accelerators, against which a step is measured."""

from dataclasses import dataclass
from typing import Any

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
    """The chip of a jax device by its kind, such as "TPU v5 lite" or "NVIDIA H100 80GB HBM3";
    None where its rates are not known."""
    kind = device.device_kind
    kind = ALIASES.get(kind, kind)
    return CHIPS.get(kind) or next((CHIPS[word] for word in kind.split() if word in CHIPS), None)
