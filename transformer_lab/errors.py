"""The one exception that a user is meant to read."""

import difflib
from collections.abc import Iterable


class LabError(Exception):
    """Bad input. Its text is one line that names the thing and the way out.

    Entry points print it without a traceback and exit with code 2.
    """


def nearest(name: str, valid: Iterable[str]) -> str:
    """' (did you mean "x"?)' for the closest valid name, else the list of all of them."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    return f' (did you mean "{close[0]}"?)' if close else f" (valid: {', '.join(valid)})"
