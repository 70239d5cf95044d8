"""What a process sets before JAX starts: the C library's memory handling, and XLA's flags."""

import ctypes
import glob
import os
import re
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


# Simulated devices may start those collectives of a program that wait for nothing in orders that
# differ. With as many threads as devices all of them can then wait, one device in the first
# collective and another in the second, for ever: XLA gives up after 40 seconds and ends the
# process. With more threads each of them starts, and none waits for a thread.
SIMULATED = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
SPLIT = "xla_cpu_multi_thread_eigen"  # a product's work over all threads, of which there are many
THREADS = 8  # for each simulated device


def order_simulated(environment: dict[str, str] = os.environ) -> None:
    """Gives simulated devices threads for all their collectives; to be called before JAX starts.

    These are the devices of `--xla_force_host_platform_device_count`; settings in the environment
    win. XLA reads the number of its threads in NPROC.
    """
    told = environment.get("XLA_FLAGS", "")
    if devices := SIMULATED.search(told):
        environment.setdefault("NPROC", str(THREADS * int(devices[1])))
        if SPLIT not in told:
            environment["XLA_FLAGS"] = f"{told} --{SPLIT}=false"


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
