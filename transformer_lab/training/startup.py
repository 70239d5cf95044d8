"""What a process sets before JAX starts: the C library's memory handling, and XLA's flags."""

import ctypes
import glob
import os
import sys
from functools import partial

# From "GPU performance tips" of docs.jax.dev and NVIDIA's "Tips for High-Performance LLMs".
GPU = (
    "xla_gpu_enable_latency_hiding_scheduler",
    "xla_gpu_enable_pipelined_all_gather",
    "xla_gpu_enable_pipelined_reduce_scatter",
    "xla_gpu_enable_pipelined_all_reduce",
    "xla_gpu_enable_while_loop_double_buffering",
)
# MaxText's and Google's published training recipes; libtpu schedules for latency by default.
TPU = (
    "xla_tpu_enable_async_collective_fusion",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather",
    "xla_tpu_enable_async_collective_fusion_multiple_steps",
    "xla_tpu_overlap_compute_collective_tc",
    "xla_enable_async_all_gather",
    "xla_tpu_enable_data_parallel_all_reduce_opt",
    "xla_tpu_data_parallel_opt_different_sized_ops",
)
# glibc's `mallopt` settings (malloc.h) for a training step, which asks for hundreds of megabytes
# and gives them back: nothing is returned to the system (M_TRIM_THRESHOLD), large blocks come from
# the heap and not from `mmap` (M_MMAP_MAX), and all threads share one heap (M_ARENA_MAX).
SETTINGS = {-1: -1, -4: 0, -8: 1}


def keep_memory() -> None:
    """Keeps the memory of a step for the next one, on Linux, unless GLIBC_TUNABLES is set.

    Without it a step of a GPT of 12 million parameters took a fifth longer, for page faults.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    for name, value in SETTINGS.items() if mallopt and "GLIBC_TUNABLES" not in os.environ else ():
        mallopt(name, value)


# Simulated devices start the collectives of one program in orders that differ when XLA has threads
# to spare: one device then waits in the first collective, another in the second, for ever.
ORDERED = "xla_cpu_multi_thread_eigen"


def order_simulated(environment: dict[str, str] = os.environ) -> None:
    """Makes simulated devices run a program's operations in order; to be called before JAX starts.

    These are the devices of `--xla_force_host_platform_device_count`; a setting in the environment
    wins.
    """
    told = environment.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" in told and ORDERED not in told:
        environment["XLA_FLAGS"] = f"{told} --{ORDERED}=false"


def set_flags(environment: dict[str, str] = os.environ, device: str | None = None) -> str:
    """Sets XLA's flags that let collectives run during computation, unless they are set already.

    `device` is "gpu", "tpu" or "cpu", found by the device files if None; it is returned. On a CPU
    nothing is set.
    """
    if device is None:
        asked = environment.get("JAX_PLATFORMS", "").replace("cuda", "gpu")
        gpu = os.path.exists("/dev/nvidiactl")
        tpu = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/*")
        device = asked or ("gpu" if gpu else "tpu" if tpu else "cpu")
    for name, variable, flags in (("gpu", "XLA_FLAGS", GPU), ("tpu", "LIBTPU_INIT_ARGS", TPU)):
        if name in device.split(","):
            told = environment.get(variable, "")
            new = [f"--{flag}=true" for flag in flags if f"--{flag}=" not in told]
            environment[variable] = " ".join([told, *new]).strip()
    return device


def drop_late_writers() -> None:
    """Leaves out a traceback for each array that is still being written when another's writer has
    failed: Orbax has ended the event loop by then, and the failure itself is one line already."""
    if getattr(sys.unraisablehook, "func", None) is not _unless_late:
        sys.unraisablehook = partial(_unless_late, sys.unraisablehook)


def _unless_late(otherwise, found) -> None:
    if found.exc_type is not RuntimeError or str(found.exc_value) != "Event loop is closed":
        otherwise(found)
