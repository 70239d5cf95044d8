"""Commands in processes of their own that are forks of one which has loaded all modules.

What is tried is a real process, with its signals, its exit code and its death; what is spared is
the time that Python takes to load the libraries.
"""

import multiprocessing
import os
import signal
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax

import transformer_lab.commands.sweep
import transformer_lab.commands.train
import transformer_lab.sweeps.report  # noqa: F401  all three are loaded before a fork
from transformer_lab import __main__ as entry
from transformer_lab.sweeps import runner
from transformer_lab.training.signals import NUMBERS, SIGNALS

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.forked"])


def started(target: Any, *arguments: Any, log: Path) -> Any:
    """A process that calls a function, or the command of a list of words, on one device; what it
    says goes to the end of the file `log`."""
    process = PROCESSES.Process(target=_run, args=(target, arguments, log))
    process.start()
    return process


def _run(target, arguments, log):
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=1"
    os.environ["XLA_FLAGS"] = flags
    # All that a process has compiled serves those after it.
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    if callable(target):
        target(*arguments)
        return
    runner.subprocess = SimpleNamespace(Popen=Forked, DEVNULL=None)
    sys.argv = ["transformer_lab", *target]
    entry.main()


def _close_files(kept):
    """Closes the open files, as `subprocess.Popen` does for a new process, but those to keep."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number not in kept and os.path.isfile(os.readlink(f"/proc/self/fd/{name}")):
                os.close(number)
        except OSError:  # the folder's own listing, which is over
            continue


class Forked:
    """Takes the place of `subprocess.Popen` for the runs of a sweep that is itself such a fork; its
    arguments are `python -m transformer_lab`, the words, and the run's log as standard output."""

    returncode: int | None = None

    def __init__(self, arguments, stdout, pass_fds, **_):
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.setsid()
            _close_files({1, 2, *pass_fds})  # the locks of other runs too
            for number in NUMBERS:
                signal.signal(number, signal.SIG_DFL)
            SIGNALS.__init__()
            _run(arguments[3:], (), stdout.name)
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """The exit code of a process that has ended, a signal's negative, else None."""
        return self._await(os.WNOHANG)

    def wait(self) -> int | None:
        """The exit code once it has ended."""
        return self._await(0)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        os.kill(self.pid, signal.SIGTERM)

    def _await(self, options):
        if self.returncode is None:
            found, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if found else None
        return self.returncode
