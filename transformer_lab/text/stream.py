"""Text of one token after the other, never half a character."""

from collections.abc import Sequence
from operator import index
from typing import SupportsIndex

from transformer_lab.text.tokenizer import REPLACEMENT, Tokenizer

UNFINISHED = 3  # bytes at most of a character that is not whole yet, each one U+FFFD or less
KEPT = 16  # tokens before the next one: enough that bytes are split into characters as before


def continuation(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """The text that ids add to that of those before them, which hold no end token.

    Some kinds drop the blank before a text's first word, so that both are decoded together.
    """
    head, whole = tokenizer.decode(before), tokenizer.decode([*before, *ids])
    return whole[len(head) :] if whole.startswith(head) else tokenizer.decode(ids)


def dropped_blank(tokenizer: Tokenizer, prompt: str, ids: Sequence[int]) -> str:
    """The blank at a prompt's end that its ids lack, and that a continuation would repeat."""
    kept = not prompt.endswith(" ") or tokenizer.decode(ids).endswith(" ")
    return "" if kept else " "


class TextStream:
    """An incremental `decode`: all pushes and `finish`, joined, are the text of all tokens.

    A push decodes at most 33 tokens and the few of `encode("a")`, save in a run of blanks that a
    tokenizer drops at the end of a text. It is the text that follows that of the tokens `before`.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()):
        self._tokenizer = tokenizer
        # Stands for the text before the tail: some kinds treat the first word differently.
        self._anchor = tokenizer.encode("a")
        self._tail: list[int] = []
        self._sent = 0  # characters of the tail's text that have been given out
        self._ended = False
        for token in before:
            self.push(token)
        self._sent = len(tokenizer.decode(self._tail))

    def push(self, token: SupportsIndex) -> str:
        """The text that one more token makes certain; often none, and none after the end token.

        Raises: LabError for an id outside the vocabulary.
        """
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
        """What was held back; the stream takes no more tokens."""
        self._ended = True
        text = self._tokenizer.decode(self._tail)
        return self._give(text, len(text))

    def _give(self, text: str, certain: int) -> str:
        new = text[self._sent : certain]
        self._sent = max(self._sent, certain)
        return new

    def _shorten(self) -> None:
        """Drop tokens whose text is out, where what is still to come stays the same."""
        short = [*self._anchor, *self._tail[-KEPT:]]
        # Blanks at the end, which may or may not count, show when a word follows.
        old, new = (self._tokenizer.decode([*ids, *self._anchor]) for ids in (self._tail, short))
        sent = self._sent - len(old) + len(new)
        if sent > 0 and old[self._sent :] == new[sent:]:
            self._tail, self._sent = short, sent
