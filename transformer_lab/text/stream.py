"""Decodes tokens one after the other, without ever showing part of a character."""

from collections.abc import Sequence
from operator import index
from typing import SupportsIndex

from transformer_lab.text.tokenizer import REPLACEMENT, Tokenizer

UNFINISHED = 3  # most bytes of an incomplete character, each decoded as at most one U+FFFD
KEPT = 16  # tokens of context that are decoded again, so that bytes form the same characters


def continuation(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """The text that ids add to that of the ids before them, which hold no end token.

    Both are decoded together, as some kinds drop the space before the first word of a text."""
    head, whole = tokenizer.decode(before), tokenizer.decode([*before, *ids])
    return whole[len(head) :] if whole.startswith(head) else tokenizer.decode(ids)


def dropped_blank(tokenizer: Tokenizer, prompt: str, ids: Sequence[int]) -> str:
    """The space at the end of a prompt, if its ids lack it and a continuation would repeat it."""
    kept = not prompt.endswith(" ") or tokenizer.decode(ids).endswith(" ")
    return "" if kept else " "


class TextStream:
    """An incremental `decode`: the results of all pushes and `finish` together are the text.

    A push decodes at most 33 tokens and those of `encode("a")`, except in a run of white space that
    a tokenizer drops at the end of a text. The text of the tokens `before` is not repeated."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()):
        self._tokenizer = tokenizer
        # Stands for the text before the tail: some kinds treat the first word differently.
        self._anchor = tokenizer.encode("a")
        self._tail: list[int] = []
        self._sent = 0  # characters of the tail's text that were returned
        self._ended = False
        for token in before:
            self.push(token)
        self._sent = len(tokenizer.decode(self._tail))

    def push(self, token: SupportsIndex) -> str:
        """The text that is certain after one more token; often "", and always after the end token.

        Raises: LabError for an id outside the vocabulary."""
        token = index(token)
        self._ended = self._ended or token == self._tokenizer.eos_id
        if self._ended or token in (self._tokenizer.pad_id, self._tokenizer.bos_id):
            return ""
        text = self._tokenizer.decode([*self._tail, token])
        self._tail.append(token)
        open_end = len(text) - len(text.rstrip(REPLACEMENT))
        new = self._give(text, len(text) - min(open_end, UNFINISHED))
        if len(self._tail) > 2 * KEPT:
            self._shorten()
        return new

    def finish(self) -> str:
        """The text that was held back; the stream takes no more tokens afterwards."""
        self._ended = True
        text = self._tokenizer.decode(self._tail)
        return self._give(text, len(text))

    def _give(self, text: str, certain: int) -> str:
        new = text[self._sent : certain]
        self._sent = max(self._sent, certain)
        return new

    def _shorten(self) -> None:
        """Drops tokens whose text was returned, if the text still to come stays the same."""
        short = [*self._anchor, *self._tail[-KEPT:]]
        # Spaces at the end only show when a word follows, so one is added.
        old, new = (self._tokenizer.decode([*ids, *self._anchor]) for ids in (self._tail, short))
        sent = self._sent - len(old) + len(new)
        if sent > 0 and old[self._sent :] == new[sent:]:
            self._tail, self._sent = short, sent


class Shown:
    """Passes text on up to the first stop string; holds back what may be the beginning of one."""

    def __init__(self, stop: tuple[str, ...]):
        self.stop, self.held, self.over = stop, "", False
        self.longest = max(map(len, stop), default=1) - 1

    def add(self, text: str, last: bool = False) -> str:
        """Takes more text, and returns what may be shown now; `last`: no more text will come."""
        self.held += text
        ends = [self.held.find(s) for s in self.stop if s in self.held]
        if self.over or ends:
            out = "" if self.over else self.held[: min(ends)]
            self.over, self.held = True, ""
            return out
        keep = 0 if last else self.longest
        cut = len(self.held) - keep if keep else len(self.held)
        out, self.held = self.held[: max(cut, 0)], self.held[max(cut, 0) :]
        return out
