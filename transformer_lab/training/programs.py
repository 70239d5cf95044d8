"""Counts the programs that a process compiles, or finds in the cache of compiled ones."""

from collections import Counter
from functools import cache

import jax

EVENTS = {  # JAX's own names of them
    "programs": "/jax/compilation_cache/compile_requests_use_cache",
    "cached_programs": "/jax/compilation_cache/cache_hits",
}
_seen: Counter[str] = Counter()


@cache
def count_programs() -> None:
    """Counts from now on; once for a process, however often it is called."""
    jax.monitoring.register_event_listener(lambda event, **_: _seen.update([event]))


def programs() -> dict[str, int]:
    """How many programs were needed so far, and how many of them an earlier process had compiled;
    {} if nothing was counted."""
    found = {name: _seen[event] for name, event in EVENTS.items()}
    return found if found["programs"] else {}
