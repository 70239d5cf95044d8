"""A request's texts as they are made, and the JSON objects that carry them, in OpenAI's form."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformer_lab.decoding.continuous import Request
from transformer_lab.serving.wire import DEFAULT_NEW, Refused, Wish
from transformer_lab.serving.worker import Worker
from transformer_lab.text.stream import Shown, TextStream, dropped_blank

CONTEXT = 32  # tokens of a prompt that decide how its continuation begins


@dataclass
class Piece:
    """New text of one choice; `finish` is "stop" or "length" if it is the last."""

    index: int
    text: str
    finish: str | None = None
    tokens: list[str] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    count: int = 0  # tokens


class Choice:
    """One continuation of one prompt: `prompt` is its text, or "" where only ids are known."""

    def __init__(self, task: Any, index: int, number: int, prompt: str, ids: Sequence[int]):
        self.task, self.index, self.number, self.prompt, self.ids = task, index, number, prompt, ids

    def request(self, wish: Wish, max_length: int) -> Request:
        """The request to the engine, with as many tokens as were asked for, or as fit."""
        room = max_length - len(self.ids)
        default = self.task.sections["decode"].max_new_tokens or DEFAULT_NEW
        if room < 1 or (wish.new_tokens or 0) > room:
            raise Refused(
                f"a prompt of {len(self.ids)} tokens and {wish.new_tokens or 1} new ones "
                f"exceed the context of {max_length}", "max_tokens",
            )  # fmt: skip
        settings = wish.temperature, wish.top_k, wish.top_p, wish.seed, self.number, wish.client
        return Request(self.ids, wish.new_tokens or min(default, room), *settings)

    async def pieces(self, worker: Worker, wish: Wish, request: Request) -> AsyncIterator[Piece]:
        """The text up to the first stop string, as it is made; the last piece says why it ends."""
        tokenizer = self.task.tokenizer
        before = self.task.without_start(self.ids)
        text, shown = TextStream(tokenizer, before[-CONTEXT:]), Shown(wish.stop)
        blank = dropped_blank(tokenizer, self.prompt, before)
        if wish.echo:
            yield Piece(self.index, self.prompt or tokenizer.decode(before))
        async for ids, log_probs, over in worker.stream(request):
            piece = Piece(self.index, "")
            for token, log_prob in zip(ids, log_probs, strict=True):
                piece.count += 1
                ended = token == tokenizer.eos_id
                if wish.log_probs and not ended:
                    piece.tokens.append(tokenizer.piece(token))
                    piece.log_probs.append(log_prob)
                piece.text += shown.add(text.push(token))
                if ended or shown.over:
                    piece.finish = "stop"
                    break
            if over and not shown.over:
                piece.finish = piece.finish or "length"
                piece.text += shown.add(text.finish(), last=True)
            new = piece.text.removeprefix(blank)
            blank, piece.text = "" if piece.text else blank, new
            yield piece
            if piece.finish:
                return


def joined(pieces: Sequence[Piece]) -> Piece:
    """All pieces of a choice as one."""
    whole = Piece(pieces[0].index, "".join(p.text for p in pieces), pieces[-1].finish)
    whole.tokens = [token for p in pieces for token in p.tokens]
    whole.log_probs = [x for p in pieces for x in p.log_probs]
    whole.count = sum(p.count for p in pieces)
    return whole


def completion(piece: Piece, log_probs: bool) -> dict[str, Any]:
    """A choice of /v1/completions, whole or as a part of a stream."""
    scored = None
    if log_probs:
        scored = {"tokens": piece.tokens, "token_logprobs": piece.log_probs}
        scored |= {"top_logprobs": None, "text_offset": None}
    shape = {"index": piece.index, "text": piece.text, "logprobs": scored}
    return shape | {"finish_reason": piece.finish}


def message(piece: Piece, log_probs: bool, part: bool = False) -> dict[str, Any]:
    """A choice of /v1/chat/completions, whole or as a part of a stream."""
    scored = None
    if log_probs:
        both = zip(piece.tokens, piece.log_probs, strict=True)
        rows = [
            {"token": token, "logprob": x, "bytes": None, "top_logprobs": []} for token, x in both
        ]
        scored = {"content": rows}
    said = {"role": "assistant", "content": piece.text}
    shape = {"index": piece.index, "delta" if part else "message": said, "logprobs": scored}
    return shape | {"finish_reason": piece.finish}
