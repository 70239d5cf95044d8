"""Renders chat templates in a process of its own, which `chat.py` starts: a program by itself.

A template comes with a model and may be anybody's. It is run in Jinja's sandbox, and the process
ends when it computes or takes memory beyond its limits, so that no loop harms the one who asks.
Standard input and output are JSON, an object a line; the first object has the template.
"""

import contextlib
import json
import resource
import signal
import sys
from datetime import datetime
from typing import Any, NoReturn

SECONDS, BYTES, LETTERS = 2.0, 1 << 30, 4_000_000  # of computing, of memory, of a rendered text


def environment() -> Any:
    """Jinja's sandbox with what chat templates expect beside its own functions."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def fail(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    class Generation(Extension):
        """The tag that marks what the assistant says, which is rendered as if it were not there."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    found.globals["raise_exception"] = fail
    found.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    found.filters["tojson"] = to_json
    return found


def main() -> None:
    """Answers each request on standard input with {"text": ...} or {"error": ...}."""
    with contextlib.suppress(OSError, ValueError):  # not every system limits memory so
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    template = None
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
        try:
            request = json.loads(line)
            if template is None:
                template = environment().from_string(request["template"])
                answer = {"text": ""}
            else:
                answer = {"text": template.render(**request)}
                if len(answer["text"]) > LETTERS:
                    answer = {"error": f"it makes more than {LETTERS:,} letters"}
        except MemoryError:
            answer = {"error": f"it needs more than {BYTES >> 20:,} MiB of memory"}
        except Exception as error:  # whatever a template may do
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
