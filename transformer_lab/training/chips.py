"""What the makers publish of their chips, by the name that JAX gives a device."""

from typing import Any, NamedTuple


class Chip(NamedTuple):
    """A device: peak bfloat16 FLOP/s without sparsity, bytes of memory, bytes a second of the
    memory and of all its links to other chips together, both directions."""

    name: str
    flops: float
    memory: float
    bandwidth: float
    link: float


# Cloud TPU and NVIDIA data sheets; a name that comes first is looked for first.
CHIPS = {
    "TPU v6 lite": Chip("v6e", 918e12, 32e9, 1638e9, 800e9),
    "TPU v5 lite": Chip("v5e", 197e12, 16e9, 819e9, 400e9),
    "TPU v5": Chip("v5p", 459e12, 95e9, 2765e9, 1200e9),
    "TPU v4": Chip("v4", 275e12, 32e9, 1228e9, 600e9),
    "B200": Chip("B200", 2250e12, 180e9, 8000e9, 1800e9),
    "H200": Chip("H200", 989e12, 141e9, 4800e9, 900e9),
    "H100 PCIe": Chip("H100 PCIe", 756e12, 80e9, 2000e9, 600e9),
    "H100": Chip("H100", 989e12, 80e9, 3350e9, 900e9),
    "A100": Chip("A100", 312e12, 80e9, 2039e9, 600e9),
}


def chip_of(device: Any) -> Chip | None:
    """The chip of a `jax.Device`, None where its peak is not known, as of a CPU."""
    return next((chip for name, chip in CHIPS.items() if name in device.device_kind), None)
