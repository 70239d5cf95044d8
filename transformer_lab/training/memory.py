"""How the system's memory is kept between the steps of a CPU."""

import ctypes
import os
import sys

# glibc's `mallopt` settings (malloc.h) for a training step, which asks for hundreds of megabytes
# and gives them back: nothing is returned to the system (M_TRIM_THRESHOLD), large blocks come from
# the heap and not from `mmap` (M_MMAP_MAX), and all threads share one heap (M_ARENA_MAX).
SETTINGS = {-1: -1, -4: 0, -8: 1}


def keep_memory() -> None:
    """Keeps what a step has used for the next one, on Linux, unless GLIBC_TUNABLES is set.

    Without it a step of a GPT of 12 million parameters took a fifth longer, for page faults.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    for name, value in SETTINGS.items() if mallopt and "GLIBC_TUNABLES" not in os.environ else ():
        mallopt(name, value)
