"""The time of each word, from the attention of a decoder of text to the frames of a window.

Some heads of the cross-attention follow the speech: each token looks at the frames in which it is
said. Their weights, smoothed and averaged, are a table of tokens by frames, and the path through it
along which they are greatest, which never goes back, gives each token its frames (Radford 2023,
section 4.5; the path is that of dynamic time warping, Sakoe & Chiba 1978)."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from transformer_lab.errors import LabError

STEP = 0.02  # seconds of an encoder's state, and between successive time tokens
SMOOTH = 7  # frames of the median filter
PAUSE = 0.7  # seconds at most that count as the usual length of a word, see `shortened`
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what bytes that are no whole character decode to
UNSPACED = {"zh", "ja", "th", "lo", "my", "yue"}  # languages without blanks between words
ENDS = tuple(".!?。！？")  # of a sentence


class Word(NamedTuple):
    """A word, the seconds at which it begins and ends, and the mean probability of its tokens."""

    word: str
    start: float
    end: float
    probability: float

    def later(self, seconds: float) -> "Word":
        """The same word in a file in which its window begins after so many seconds."""
        times = (round(float(t + seconds), 3) for t in (self.start, self.end))
        return Word(self.word, *times, round(self.probability, 4))


class Aligned(NamedTuple):
    """The seconds at which each token of a text begins and ends, and its probability."""

    starts: Float[np.ndarray, "t"]
    ends: Float[np.ndarray, "t"]
    probabilities: Float[np.ndarray, "t"]


class WordAligner:
    """Aligns the texts of a window to its sound, for a model with cross-attention.

    Compiled once: a text is padded to `new` tokens at its end, which changes nothing before."""

    step = STEP

    def __init__(
        self,
        model: Any,
        heads: Sequence[tuple[int, int]],
        text_of: Callable[[Sequence[int]], str],
        eos_id: int,
        new: int,
    ):
        self.model, self.heads, self.text_of = model, heads, text_of
        self.eos_id, self.new, self._read = eos_id, new, jax.jit(self._attention)

    def __call__(
        self,
        params: Any,
        heard: Any,
        prompt: Sequence[int],
        texts: Sequence[Sequence[int]],
        seconds: float,
        spaced: bool = True,
        pause: bool = True,
    ) -> list[list[Word]]:
        """The words of the texts of a window, with the seconds from its beginning.

        `heard` is the model's cache before the first token; the prompt ends with the mark of a text
        without times. The window has `seconds` of sound, and silence after it. `spaced` says that
        blanks divide words, `pause` that nobody spoke just before."""
        ids, lead = [token for text in texts for token in text], len(prompt)
        read = np.array([*prompt, *ids, self.eos_id], np.int32)
        room = max(lead + self.new + 1 - len(read), 0)
        weights, chances = self._read(params, heard, np.pad(read, (0, room))[None])
        starts = self.starts(np.asarray(weights)[:, : len(read)], lead, seconds)
        found = Aligned(starts[:-1], starts[1:], np.asarray(chances)[lead - 1 :][: len(ids)])
        words, first = [], 0
        for text in texts:
            mine = Aligned(*(part[first : first + len(text)] for part in found))
            words.append(words_of(text, mine, self.text_of, spaced))
            first += len(text)
        return shortened(words, pause)

    def frames(self, seconds: float) -> int:
        """The number of the encoder's states of so many seconds of sound."""
        return max(round(seconds / STEP), 1)

    def starts(
        self, weights: Float[np.ndarray, "heads t s"], lead: int, seconds: float
    ) -> Float[np.ndarray, "n"]:
        """The second in which each token that is written begins, see `token_frames`."""
        return STEP * token_frames(weights[..., : self.frames(seconds)], lead)

    def _attention(self, params, cache, tokens):
        """The heads' attention [heads t s] to a window, and each next token's probability [t]."""
        call = {"method": "step", "mutable": ["intermediates"]}
        (logits, _), found = self.model.apply(params, tokens, cache, **call)
        layers = found["intermediates"]["decoder"]
        chosen = [
            layers[f"layer_{i}"]["cross_attention"]["weights"][0][0, h] for i, h in self.heads
        ]
        chances = jax.nn.softmax(logits[0, :-1].astype(jnp.float32))
        said = jnp.take_along_axis(chances, tokens[0, 1:, None], axis=1)[:, 0]
        return jnp.stack(chosen).astype(jnp.float32), said


def heads_of(config: Any, chosen: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """The chosen heads, as layer and number; without a choice all of the upper half of the layers.

    Raises: LabError for a head that the model's decoder lacks."""
    stack = config.decoder
    for layer, head in chosen:
        if layer >= stack.layers or head >= stack.heads:
            raise LabError(
                f"decode.alignment_heads: the decoder has no head {head} in layer {layer}"
            )
    return chosen or [*product(range(stack.layers // 2, stack.layers), range(stack.heads))]


def token_frames(weights: Float[np.ndarray, "heads t s"], lead: int) -> Int[np.ndarray, "n"]:
    """The first frame of each token that is written, given the attention of all that is read.

    The decoder reads a prompt of `lead` tokens, whose last predicts the first token of the text,
    the text, and the end token. The weights are over the frames with sound. A weight counts by how
    far it is above the mean of its frame over all tokens, in standard deviations."""
    weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
    spread = np.maximum(weights.std(axis=1, keepdims=True), 1e-10)
    scores = (weights - weights.mean(axis=1, keepdims=True)) / spread
    path = warped(-smoothed(scores).mean(axis=0)[lead - 1 : -1])
    first = np.flatnonzero(np.diff(path[:, 0], prepend=-1))  # where a token begins
    return path[first, 1]


def smoothed(x: Float[np.ndarray, "*n s"], width: int = SMOOTH) -> Float[np.ndarray, "*n s"]:
    """The median of the `width` values around each, mirrored at the ends."""
    half = width // 2
    if x.shape[-1] <= half:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode="reflect")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1), axis=-1)


def warped(cost: Float[np.ndarray, "t s"]) -> Int[np.ndarray, "p 2"]:
    """The path of least total cost from the first corner to the last, as rows and columns.

    Each step goes to the next row, the next column, or both. It is computed along the diagonals
    from the lower left to the upper right, whose entries do not depend on each other."""
    t, s = cost.shape
    total = np.full((t + 1, s + 1), np.inf)
    total[0, 0] = 0.0
    for diagonal in range(t + s - 1):
        i = np.arange(max(0, diagonal - s + 1), min(t, diagonal + 1))
        j = diagonal - i
        before = np.minimum(np.minimum(total[i, j], total[i, j + 1]), total[i + 1, j])
        total[i + 1, j + 1] = cost[i, j] + before
    path, i, j = [], t, s
    while i or j:
        path.append((i - 1, j - 1))
        steps = ((i - 1, j - 1), (i - 1, j), (i, j - 1))
        i, j = min((step for step in steps if min(step) >= 0), key=lambda step: total[step])
    return np.array(path[::-1])


def words_of(
    ids: Sequence[int],
    found: Aligned,
    text_of: Callable[[Sequence[int]], str],
    spaced: bool,
) -> list[Word]:
    """The words of a text with their times; punctuation belongs to the word that it touches.

    A word lasts as long as its tokens that hold more than punctuation. In a language without blanks
    (`spaced` is False) each token that completes a character is a word."""
    if not ids:
        return []
    said = [any(c.isalnum() or c == REPLACEMENT for c in text_of([token])) for token in ids]
    begins, before = [], ""
    for i, letters in enumerate(said):
        text = text_of(ids[: i + 1])
        whole = not before.endswith(REPLACEMENT)  # the bytes of a character may be several tokens
        begins.append(len(text.split()) > len(before.split()) if spaced else letters and whole)
        before = text
    words = []
    for mine in np.split(np.arange(len(ids)), np.flatnonzero(begins[1:]) + 1):
        some = [i for i in mine if said[i]] or list(mine)
        times = float(found.starts[some[0]]), float(found.ends[some[-1]])
        text = text_of([ids[i] for i in mine]).strip()
        words.append(Word(text, *times, float(found.probabilities[some].mean())))
    return words


def shortened(texts: Sequence[Sequence[Word]], pause: bool) -> list[list[Word]]:
    """The words of a window, without the pause that the first word of a sentence may begin with.

    Such a word is at most twice as long as the median of the words, or twice PAUSE; of a longer one
    the end stays. `pause` says the same of the first word."""
    lengths = [word.end - word.start for text in texts for word in text if word.end > word.start]
    most = 2 * min(float(np.median(lengths)), PAUSE) if lengths else 0.0
    found = []
    for text in texts:
        found.append([])
        for word in text:
            late = word._replace(start=max(word.start, word.end - most))
            found[-1].append(late if pause else word)
            pause = word.word.endswith(ENDS)
    return found
