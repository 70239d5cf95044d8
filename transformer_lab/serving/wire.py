"""What a request asks for, read from JSON in OpenAI's form; whatever is wrong is refused by name.

The settings that a request leaves open are those of the run's config (`decode`). A key that is
neither known here nor without effect is refused, so that no wish is passed over in silence.
"""

import json
import secrets
from dataclasses import dataclass
from typing import Any

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.errors import LabError
from transformer_lab.text.tokenizer import clean

COMMON = {"model", "max_tokens", "n", "seed", "stop", "stream", "stream_options", "temperature",
          "top_k", "top_p", "logprobs", "user"}  # fmt: skip
COMPLETION = COMMON | {"prompt", "echo"}
CHAT = COMMON | {"messages", "max_completion_tokens", "top_logprobs"}
EMBEDDING = {"model", "input", "user", "encoding_format"}
ROLES = ("system", "developer", "user", "assistant")
DEFAULT_NEW = 256  # tokens of an answer, where neither the request nor the config says
SAMPLES = 16  # the most texts that one request may ask for


class Refused(LabError):
    """A request that cannot be served: `status` is HTTP's, `param` the key that is wrong."""

    def __init__(self, text: str, param: str | None = None, status: int = 400):
        super().__init__(text)
        self.param, self.status = param, status


@dataclass(frozen=True)
class Wish:
    """How a text is to be continued, and in what form the answer is given."""

    new_tokens: int | None  # None: the default, or what fits
    temperature: float
    top_k: int
    top_p: float
    seed: int
    samples: int
    stop: tuple[str, ...]
    stream: bool
    usage: bool  # a stream ends with the number of tokens
    log_probs: bool
    echo: bool
    client: str


def parsed(body: bytes, known: set[str]) -> dict[str, Any]:
    """The keys of a JSON object that have values."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is no JSON: {str(error)[:100]}") from error
    if not isinstance(found, dict):
        raise Refused("the body is no JSON object")
    for key, value in found.items():
        if key not in known and value not in (None, False, 0, 1, "", [], {}, "auto", "none"):
            raise Refused(f"{key[:80]} is not supported", key[:80])
    return {key: value for key, value in found.items() if value is not None}


def number(body: dict, name: str, default: Any, low: float, high: float, whole: bool = True) -> Any:
    """A number of the body within its bounds."""
    value = body.get(name, default)
    kinds = int if whole else (int, float)
    if value is default:
        return value
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise Refused(f"{name} must be {kind} from {low:g} to {high:g}", name)
    return value


def flag(body: dict, name: str) -> bool:
    """A truth value of the body, by default False."""
    if not isinstance(value := body.get(name, False), bool):
        raise Refused(f"{name} must be true or false", name)
    return value


def words(value: Any, name: str) -> str:
    """A text of the body that can be written in UTF-8."""
    if not isinstance(value, str) or clean(value) != value:
        raise Refused(f"{name} must be a text in Unicode", name)
    return value


def wish(body: dict[str, Any], decode: DecodeConfig, client: str) -> Wish:
    """The settings of a completion or of an answer in a conversation."""
    stop = body.get("stop", list(decode.stop))
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or len(stop) > 16 or "" in stop:
        raise Refused("stop must be a text or up to 16 of them, none empty", "stop")
    longest, name = 2**31 - 1, "max_tokens"
    name = "max_completion_tokens" if "max_completion_tokens" in body else name
    options = body.get("stream_options", {})
    if not isinstance(options, dict):
        raise Refused("stream_options must be an object", "stream_options")
    scored = body.get("logprobs", False)
    if not isinstance(scored, int) or not 0 <= scored <= 5:
        raise Refused("logprobs must be true, or a number from 0 to 5", "logprobs")
    found = Wish(
        new_tokens=number(body, name, None, 1, longest),
        temperature=number(body, "temperature", decode.temperature, 0, 100, whole=False),
        top_k=number(body, "top_k", decode.top_k, 0, longest),
        top_p=number(body, "top_p", decode.top_p, 0, 1, whole=False),
        seed=number(body, "seed", secrets.randbits(32), 0, 2**32 - 1),
        samples=number(body, "n", 1, 1, SAMPLES),
        stop=tuple(words(each, "stop") for each in stop),
        stream=flag(body, "stream"),
        usage=flag(options, "include_usage"),
        log_probs=scored is not False,
        echo=flag(body, "echo"),
        client=words(body.get("user", client), "user")[:200],
    )
    if found.echo and found.log_probs:
        raise Refused("echo and logprobs do not go together: prompts are not scored", "echo")
    return found


def prompts(body: dict[str, Any], vocabulary: int) -> list[str | list[int]]:
    """The prompts of a completion: a text, ids, or several of either."""
    given = body.get("prompt")
    several = isinstance(given, list) and given and not isinstance(given[0], int)
    found = given if several else [given]
    if len(found) > SAMPLES:
        raise Refused(f"more than {SAMPLES} prompts: send them one by one", "prompt")
    for prompt in found:
        if isinstance(prompt, list):
            valid = lambda i: type(i) is int and 0 <= i < vocabulary  # noqa: E731
            if not prompt or not all(map(valid, prompt)):
                raise Refused(f"the ids of a prompt must be from 0 to {vocabulary - 1}", "prompt")
        else:
            words(prompt, "prompt")
    return found


def messages(body: dict[str, Any]) -> list[dict[str, str]]:
    """The messages of a conversation: their roles and texts."""
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise Refused("messages must be a list with at least one message", "messages")
    found = []
    for message in given:
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ROLES:
            raise Refused(f"a message's role must be one of {', '.join(ROLES)}", "messages")
        content = message.get("content")
        if isinstance(content, list):  # parts, of which only texts can be read
            texts = [p.get("text") for p in content if isinstance(p, dict)]
            content = None if len(texts) < len(content) or None in texts else texts
        parts = content if isinstance(content, list) else [content]
        content = "".join(words(part, "messages") for part in parts)
        found.append({"role": role.replace("developer", "system"), "content": content})
    return found


def chat_ids(task: Any, conversation: list[dict[str, str]]) -> list[int]:
    """A conversation as a prompt, by the chat template of the run's tokenizer; without one each
    message is a line "role: text"."""
    if task.tokenizer.chat_template is not None:
        return task.chat.ids(conversation)
    lines = [f"{message['role']}: {message['content']}" for message in conversation]
    return task.prompt_ids("\n".join([*lines, "assistant:"]))
