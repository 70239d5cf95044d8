"""Transcribes audio of any length, with times, window by window with a Whisper model.

Radford 2023, sections 2.3 and 4.5: a prompt of special tokens says what to write; the next window
begins at the last time that was written; a window whose text is improbable or repetitive is decoded
again at a higher temperature; a window without speech is skipped; and the text before a window is
part of its prompt."""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.loop import Cache, SearchResult, Single, controls_of, search
from transformer_lab.decoding.word_times import STEP, UNSPACED, Word, WordAligner, heads_of
from transformer_lab.errors import LabError, known
from transformer_lab.ops.spectrograms import HOP, RATE, log_mel

TASKS = ("transcribe", "translate")


@runtime_checkable
class Audio(Protocol):
    """A source of audio samples in -1..1, RATE of them a second."""

    def take(self, start: int, count: int) -> Float[np.ndarray, "n"]:
        """The `count` samples from `start` on, fewer at the end; `start` may never decrease."""


@dataclass(frozen=True)
class SpeechConfig:
    """Settings of transcription: language, task, times, and when a window is decoded again."""

    language: str = ""  # such as "fr"; "": the likeliest in the first window of each file
    task: str = "transcribe"  # transcribe, or translate into English
    times: bool = True  # write times; else a window's text is one segment
    word_times: bool = False  # also say when each word begins and ends
    with_previous: bool = True  # the text before a window is part of its prompt
    # The first temperature whose text passes the checks below is used.
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    least_log_prob: float = -1.0  # texts of a lower mean log-probability a token are rejected
    most_compression: float = 2.4  # texts that zlib compresses by a larger factor are repetitive
    silence: float = 0.6  # from this probability of no speech on, an improbable text is dropped

    def __post_init__(self):
        if self.task not in TASKS:
            raise LabError(f'task = "{self.task}" is none of {", ".join(TASKS)}')
        if not self.temperatures or min(self.temperatures) < 0:
            raise LabError(f"temperatures = {self.temperatures} must be one or more, from 0 on")


class Marks(NamedTuple):
    """The special tokens of a prompt. A model may have `start` only, or no languages."""

    start: int
    previous: int | None = None
    silence: int | None = None
    no_times: int | None = None  # time tokens have the ids after it
    tasks: Mapping[str, int] = MappingProxyType({})
    languages: Mapping[str, int] = MappingProxyType({})

    def prompt(self, language: str, task: str, times: bool) -> list[int]:
        """The special tokens before a text: start, language, task, and whether it has times."""
        kind = [self.languages[language or "en"], self.tasks[task]] if self.languages else []
        return [self.start, *kind, *[self.no_times] * (not times and self.no_times is not None)]

    def all(self) -> list[int]:
        """The ids of all special tokens that the model has."""
        single = (self.start, self.previous, self.silence, self.no_times)
        return [
            i for i in (*single, *self.tasks.values(), *self.languages.values()) if i is not None
        ]


class Segment(NamedTuple):
    """A piece of text, with the seconds at which it begins and ends in the audio."""

    start: float
    end: float
    text: str
    log_prob: float  # mean over the tokens of its window
    silence: float  # probability that its window holds no speech
    temperature: float
    language: str = "en"
    words: tuple[Word, ...] = ()  # if `word_times` are asked for


class Window(NamedTuple):
    """The token ids decoded for a window of audio, with what the decision to keep them needs."""

    ids: list[int]  # without the end token
    log_prob: float
    silence: float
    temperature: float


class Transcriber:
    """Transcribes audio with a Whisper model, compiled once for each kind of prompt.

    `text_of` gives the text of ids without times. Sampling depends on the seed and window only."""

    def __init__(
        self,
        model: Any,
        decode: DecodeConfig,
        config: SpeechConfig,
        marks: Marks,
        *,
        eos_id: int,
        text_of: Callable[[Sequence[int]], str],
        seed: int = 0,
    ):
        self.model, self.config, self.marks = model, config, marks
        self.times = config.times and marks.no_times is not None
        zero = marks.no_times + 1 if self.times else None
        self.decode = replace(decode, zero_time=zero, n_best=1, renormalize=True)
        self.eos_id, self.text_of, self.seed = eos_id, text_of, seed
        self.with_previous = config.with_previous and marks.previous is not None
        self.samples = model.config.frames * HOP  # samples of a window
        most = model.config.max_length  # half of it is for the text before
        self.new = min(decode.max_new_tokens or most, most // 2)
        self.room = max(most - self.new - len(self._marks("")) - 1, 0)
        self._hear, self._read = jax.jit(self._cache), jax.jit(self._first)
        self._search = jax.jit(self._found, static_argnums=3)
        self.aligner = None
        if config.word_times:
            heads = heads_of(model.config, decode.alignment_heads)
            self.aligner = WordAligner(model, heads, text_of, eos_id, self.new)
        if config.language and marks.languages and config.language not in marks.languages:
            known("language = ", config.language, marks.languages)
        if config.task == "translate" and not marks.languages:
            raise LabError("a model of one language does not translate: use task = transcribe")

    def hear(self, params: Any, samples: Float[np.ndarray, "n"]) -> Cache:
        """The model's cache after reading a window, which is padded with silence at its end."""
        samples = samples[: self.samples]
        return self._hear(params, np.pad(samples, (0, self.samples - len(samples)))[None])

    def language_of(self, params: Any, heard: Cache) -> str:
        """The likeliest language of a window; "en" if the model has no languages."""
        if not self.marks.languages:
            return "en"
        first = self._read(params, heard, self._batch([self.marks.start], 1))[1]
        chances = np.asarray(first[0])[list(self.marks.languages.values())]
        return list(self.marks.languages)[int(chances.argmax())]

    def __call__(self, params: Any, audio: Audio) -> Iterator[Segment]:
        """The segments of the audio in order, yielded as soon as their window is decoded."""
        place, before, language, pause = 0, [], self.config.language, True
        while len(samples := audio.take(place, self.samples)) >= HOP:
            heard = self.hear(params, samples)
            language = language or self.language_of(params, heard)
            window = self.window(params, heard, before, language, place)
            if self._is_silent(window):
                place, pause = place + self.samples, True
                continue
            pieces, moved = cut(window.ids, self.decode.zero_time, len(samples) / RATE)
            said = lambda ids: self.text_of(self.texts(ids)).strip()  # noqa: E731
            pieces = [p for p in pieces if p[1] > p[0] and said(p[2])]
            words, offset = [[] for _ in pieces], place / RATE
            if self.aligner and pieces:
                prompt = self.marks.prompt(language, self.config.task, times=False)
                texts = [self.texts(ids) for _, _, ids in pieces]
                shown = len(samples) / RATE, language not in UNSPACED, pause
                words = self.aligner(params, heard, prompt, texts, *shown)
            for (start, end, ids), some in zip(pieces, words, strict=True):
                times = round(offset + start, 3), round(offset + end, 3)
                more = language, tuple(word.later(offset) for word in some)
                yield Segment(*times, said(ids), *window[1:], *more)
                before, pause = before + ids, False
            if window.temperature > 0.5 or not self.with_previous:
                before = []
            place += max(round(moved * RATE), HOP) if moved else self.samples

    def window(
        self,
        params: Any,
        heard: Cache,
        before: Sequence[int] = (),
        language: str = "",
        number: int = 0,
    ) -> Window:
        """The result for one window after a text, of the first temperature that is good enough; if
        none is, the likeliest of those that are not repetitive, else of all."""
        prompt, length = self._marks(language), len(self._marks(language))
        if before:
            last = before[max(len(before) - self.room, 0) :]
            prompt = [self.marks.previous, *last, *prompt]
            length += 1 + self.room
        batch = self._batch(prompt, length)
        cache, first = self._read(params, heard, batch)
        at_start = np.asarray(first[0])
        silence = 0.0 if self.marks.silence is None else float(at_start[self.marks.silence])
        tried = []
        for temperature in self.config.temperatures:
            key = jax.random.fold_in(jax.random.key(self.seed), number)
            drawn = {"temperature": 1.0, "beam_size": 1} if temperature else {"temperature": 0.0}
            decode = replace(self.decode, **drawn)
            controls = controls_of(replace(decode, temperature=temperature, beam_size=1))
            found = self._search(params, cache, batch["prompt"], decode, key, controls)
            found = jax.device_get(found)
            ids = found.tokens[0, 0, : found.lengths[0, 0]].tolist()
            mean = float(found.log_probs[0, 0]) / max(len(ids), 1)
            ids = ids[:-1] if ids and ids[-1] == self.eos_id else ids
            tried.append(Window(ids, mean, silence, temperature))
            good = mean >= self.config.least_log_prob and not self._repeats(tried[-1])
            if good or self._is_silent(tried[-1]):
                return tried[-1]
        return max(tried, key=lambda window: (not self._repeats(window), window.log_prob))

    def _is_silent(self, window: Window) -> bool:
        likely = window.silence > self.config.silence
        return likely and window.log_prob < self.config.least_log_prob

    def _repeats(self, window: Window) -> bool:
        data = self.text_of(self.texts(window.ids)).encode()
        return len(data) > self.config.most_compression * len(zlib.compress(data))

    def texts(self, ids: Sequence[int]) -> list[int]:
        """The ids without the times among them."""
        return [token for token in ids if not self.times or token < self.decode.zero_time]

    def _marks(self, language: str) -> list[int]:
        return self.marks.prompt(language, self.config.task, self.times)

    def _batch(self, prompt, length):
        """A prompt, padded at its start to `length`."""
        padding = length - len(prompt)
        ids = np.pad(np.asarray(prompt, np.int32), (padding, 0), constant_values=self.eos_id)
        return {"prompt": ids[None], "start": np.array([padding], np.int32)}

    def _cache(self, params, samples):
        """The cache before the first token, with room for any prompt and text."""
        cfg = self.model.config
        inputs = log_mel(samples, cfg.bins), cfg.max_length
        return self.model.apply(params, *inputs, method="init_cache")

    def _first(self, params, cache, batch):
        """The cache before the prompt's last token, and the probabilities [b v] after `start`."""
        prompt = batch["prompt"]
        cache = cache | {"start": batch["start"]}
        logits, cache = self.model.apply(params, prompt, cache, method="step")
        marks = prompt.shape[1] - 1 - (prompt[0, ::-1] == self.marks.start).argmax()
        cache["index"] = cache["index"] - 1  # the search reads the last token again
        return cache, jax.nn.softmax(logits[:, marks].astype(jnp.float32))

    def _found(
        self,
        params: Any,
        cache: Any,
        prompt: Int[Array, "b p"],
        decode: DecodeConfig,
        key: Key[Array, ""],
        controls: tuple[Array, Array, Array],
    ) -> SearchResult:
        step = partial(self.model.apply, params, method="step")
        ends = {"eos_id": self.eos_id, "pad_id": self.eos_id}
        if not decode.temperature:
            before = {"before": prompt[:, :-1], "max_new_tokens": self.new}
            return search(step, cache, prompt[:, -1], decode, **before, **ends)
        loop = Single(decode, *ends.values(), prompt.shape[1], self.new, controls)
        keys = jax.random.split(key, len(prompt))
        state = loop.start(cache, prompt, jnp.zeros(len(prompt), bool), keys)
        return loop.found(loop.run(step, state, self.new))


def cut(
    ids: Sequence[int], zero: int | None, seconds: float
) -> tuple[list[tuple[float, float, list[int]]], float]:
    """The pieces of a window's text with the seconds at which they begin and end, and the seconds
    by which the next window is moved (0: by a whole window). A piece has its times among its ids.

    Two times in a row end one piece and begin the next. Text after the last such pair is read again
    from there; a single time at the end says that no more speech follows. A window without such
    pairs is one piece up to its last time, or to its end."""
    if zero is None:
        return [(0.0, seconds, [*ids])], 0.0
    time = lambda token: (token - zero) * STEP  # noqa: E731
    is_time = [token >= zero for token in ids]
    ends = [i for i in range(1, len(ids)) if is_time[i - 1] and is_time[i]]
    closed = is_time[-2:] == [False, True]
    if not ends:
        times = [time(token) for token in ids if token >= zero]
        first, last = (times[0] if times else 0.0), (times[-1] if len(times) > 1 else seconds)
        return [(first, last, [*ids])], 0.0
    pieces, first = [], 0
    for end in [*ends, *[len(ids)] * closed]:
        part = [*ids[first:end]]
        pieces.append((time(part[0]), time(part[-1]), part))
        first = end
    return pieces, 0.0 if closed else time(ids[ends[-1] - 1])
