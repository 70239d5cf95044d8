"""Runs calls in other processes, a few at a time, so that their arguments need little memory."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any

from transformer_lab.errors import LabError


def results(
    function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[Any]:
    """The results of the calls as they finish; with one worker in this process, and in order.

    At most twice as many calls as workers run or wait. Workers end when this process ends, however
    that happens. Raises: what a call raises; LabError for a worker that was killed."""
    if workers <= 1:
        yield from (function(*call) for call in calls)
        return
    calls = iter(calls)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _end_with_the_parent) as pool:
        running = {pool.submit(function, *call) for call in islice(calls, 2 * workers)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {pool.submit(function, *call) for call in islice(calls, len(done))}
                for future in done:
                    yield future.result()
        except BrokenProcessPool:
            raise LabError(
                "a worker process was ended from outside, perhaps for want of memory: the same "
                "command goes on where it stopped; lower --workers if it happens again"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interruptions
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes run in parallel already
    parent = multiprocessing.parent_process()

    def watch():
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
