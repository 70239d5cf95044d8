"""Eight simulated devices, checked types of arrays, and one compilation cache for all processes."""

import gc
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

# Tiny programs cost their compilation: without the compiler's own optimizations it is half of that,
# and of its two writers of fused loops the older one, which later releases lack, takes a third.
# Threads for all collectives of the simulated devices: see `training.startup.order_simulated`.
OLDER = "--xla_cpu_use_fusion_emitters=false " if version("jaxlib").startswith("0.10.") else ""
# Collecting the tests makes so many objects that looking for dead ones took a fifth of its time.
gc.set_threshold(100_000, 50, 100)
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=false "
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 "
    f"{OLDER}{os.environ.get('XLA_FLAGS', '')}"
)
os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
CACHE = Path(tempfile.gettempdir()) / f"transformer_lab_test_cache_{os.getuid()}"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

from jaxtyping import install_import_hook  # noqa: E402

# A check costs each call some 20 microseconds: it is for the files that say the types of arrays.
ROOT = Path(__file__).parents[1]
FILES = [
    path for path in (ROOT / "transformer_lab").rglob("*.py") if "jaxtyping" in path.read_text()
]
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES]
install_import_hook(MODULES, "beartype.beartype")

import jax  # noqa: E402
import pytest  # noqa: E402

from transformer_lab import terminal  # noqa: E402

terminal.SELDOM = 3600.0  # no line depends on how long something takes on a busy machine

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))


@pytest.fixture(scope="module", autouse=True)
def _bounded_memory():
    """A worker gives up what it compiled for the files before if it has half of its share of the
    memory, where the system tells."""
    yield
    status = Path("/proc/self/statm")
    if not status.exists():
        return
    if int(status.read_text().split()[1]) > os.sysconf("SC_PHYS_PAGES") // (2 * WORKERS):
        jax.clear_caches()
        gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a test of many cases, `each_run(ID, ...)` names those of each run; the others are slow."""
    cases = {}
    for item in items:
        if item.get_closest_marker("each_run"):
            cases.setdefault((item.path, item.originalname), {})[item.callspec.id] = item
    for found in cases.values():
        kept = next(iter(found.values())).get_closest_marker("each_run").args
        if len(found) > len(kept) and not found.keys() >= set(kept):
            raise pytest.UsageError(f"each_run names no case: {sorted(set(kept) - found.keys())}")
        for name in found.keys() - set(kept):
            found[name].add_marker(pytest.mark.slow)
