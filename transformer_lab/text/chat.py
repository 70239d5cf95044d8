"""Conversations as token ids, by the chat template that comes with a model's tokenizer."""

import json
import re
import secrets
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from transformer_lab.errors import LabError
from transformer_lab.text import rendering
from transformer_lab.text.tokenizer import Tokenizer, clean

Message = dict[str, Any]  # "role" (system, user, assistant) and "content"


class ChatTemplate:
    """Turns messages into ids; nothing in a message can become a control token.

    The template writes the control tokens, such as <|im_end|>; the same letters in a message are
    encoded as any other text. Templates run in a process of their own (see `rendering.py`)."""

    def __init__(self, tokenizer: Tokenizer):
        """Raises: LabError for a tokenizer without a chat template, or one that Jinja refuses."""
        if tokenizer.chat_template is None:
            raise LabError(
                "the tokenizer has no chat template, so the model is none for chat: use generate"
            )
        self.tokenizer = tokenizer
        self._controls = _any_of(tokenizer.controls)
        self._names = {
            f"{role}_token": tokenizer.piece(getattr(tokenizer, f"{role}_id"))
            for role in ("bos", "eos", "pad", "unk")
        }
        self._lock, self._process = threading.Lock(), None
        self._start()

    def ids(self, messages: Sequence[Message], answer: bool = True) -> list[int]:
        """The ids of a conversation, by default with the beginning of the assistant's answer.

        Raises: LabError if the template refuses the messages, or does not end."""
        mark = f"\ufdd0{secrets.randbelow(10**18)}:"  # occurs in no message, and has no letters
        hidden: list[str] = []

        def hide(match: re.Match[str]) -> str:
            hidden.append(match[0])
            return f"{mark}{len(hidden) - 1}\ufdd0"

        def safe(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: safe(each) for key, each in value.items()}
            if isinstance(value, list):
                return [safe(each) for each in value]
            return self._controls.sub(hide, clean(value)) if isinstance(value, str) else value

        request = {"messages": safe(list(messages)), "add_generation_prompt": answer}
        whole = self._ask(request | self._names)
        show = lambda match: hidden[int(match[1])]  # noqa: E731
        found: list[int] = []
        place = 0
        for match in [*self._controls.finditer(whole), None]:
            end = len(whole) if match is None else match.start()
            text = re.sub(f"{mark}(\\d+)\ufdd0", show, whole[place:end])
            found += self.tokenizer.encode(text) if text else []
            if match is not None:
                found.append(self.tokenizer.controls[match[0]])
                place = match.end()
        return found

    def fitting(self, messages: list[Message], room: int) -> tuple[list[int], list[Message]]:
        """The ids of a conversation without its oldest turns, so that they are at most `room`, and
        the messages that are left. The system's message stays.

        Raises: LabError if the last message alone is too long."""
        first = 1 if messages and messages[0]["role"] == "system" else 0
        while len(ids := self.ids(messages)) > room:
            users = [i for i, m in enumerate(messages) if m["role"] == "user" and i > first]
            if not users:
                raise LabError(
                    f"the message takes {len(ids)} tokens, and there is room for {room}: "
                    "shorten it, or lower decode.max_new_tokens"
                )
            messages = [*messages[:first], *messages[users[0] :]]
        return ids, messages

    def _ask(self, request: dict[str, Any]) -> str:
        """The rendered text of a request. Raises: LabError for all that a template may do."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            answer = self._exchange(request)
        if "error" in answer:
            raise LabError(f"the chat template fails: {answer['error']}")
        return answer["text"]

    def _start(self) -> None:
        """Starts a process, which lives as long as this object, and gives it the template."""
        program = [sys.executable, "-P", rendering.__file__]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True)
        weakref.finalize(self, _stop, self._process)
        answer = self._exchange({"template": self.tokenizer.chat_template})
        if "error" in answer:
            raise LabError(f"the chat template cannot be read: {answer['error']}")

    def _exchange(self, request: dict[str, Any]) -> dict[str, str]:
        """The process's answer to a request; it gives none when it was ended."""
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        self._process.wait()
        return {"error": f"it did not end within {rendering.SECONDS:g} seconds of computing"}


def _any_of(pieces: Any) -> re.Pattern[str]:
    """An expression for any of these texts, the longest first; for none it matches nothing."""
    longest = sorted(pieces, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest)) or r"(?!)")


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
