"""Texts of recordings by a model with a CTC layer, in batches and for files of any length."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.ctc import CTCConfig, NextLogProbs, Reading, greedy, prefix_beam
from transformer_lab.decoding.loop import search
from transformer_lab.decoding.speech import Audio, Segment
from transformer_lab.errors import LabError
from transformer_lab.ops.losses import token_scores
from transformer_lab.ops.spectrograms import HOP, RATE, WINDOW


class Said(NamedTuple):
    """A recording's text, and its log-probability for each token and the end."""

    text: str
    log_prob: float


class CTCReader:
    """Maps features to texts by the config's method; compiled once for each shape of a batch.

    `text_of` gives the text of ids, `language` the log-probabilities of the next token after ids.
    The blank is the padding token. Raises: LabError for a method that the model has no decoder for.
    """

    def __init__(
        self,
        model: Any,
        config: CTCConfig,
        decode: DecodeConfig,
        *,
        pad_id: int,
        bos_id: int,
        eos_id: int,
        text_of: Callable[[Sequence[int]], str],
        language: NextLogProbs | None = None,
    ):
        self.model, self.config, self.decode = model, config, decode
        self.pad_id, self.bos_id, self.eos_id = pad_id, bos_id, eos_id
        self.text_of, self.language = text_of, language
        if config.method in ("joint", "attention") and not model.config.decodes:
            raise LabError(
                f'ctc.method = "{config.method}" needs a model with a decoder (model.decodes): '
                "use greedy or beam"
            )
        self._states, self._score = jax.jit(self._log_probs), jax.jit(self._decoder_nats)
        self._search = jax.jit(self._searched)

    def __call__(
        self,
        params: Any,
        features: Float[Array | np.ndarray, "b f m"],
        mask: Bool[Array | np.ndarray, "b f"],
    ) -> list[Said]:
        """The text of each row; a row without frames has none."""
        if self.config.method == "attention":
            found = jax.device_get(self._search(params, features, mask))
            ids = [row[:n][row[:n] != self.eos_id] for row, n in
                   zip(found.tokens[:, 0], found.lengths[:, 0], strict=True)]  # fmt: skip
            totals = found.log_probs[:, 0].tolist()
            some = [Reading(tuple(i.tolist()), t, t) for i, t in zip(ids, totals, strict=True)]
        else:
            log_probs, real = jax.device_get(self._states(params, features, mask))
            some = []
            for row in range(len(log_probs)):
                some.append(self._read(params, log_probs[row][real[row]], features, mask, row))
        return [Said(self.text_of(r.ids).strip(), r.log_prob / (len(r.ids) + 1)) for r in some]

    def _read(self, params, log_probs, features, mask, row) -> Reading:
        config = self.config
        if config.method == "greedy":
            return greedy(log_probs, self.pad_id)
        banned = self.eos_id, self.bos_id, *self.decode.banned_tokens
        inputs = log_probs, self.pad_id, config, self.language, self.eos_id, banned
        found = prefix_beam(*inputs)
        if config.method == "beam" or not len(log_probs):
            return found[0]
        found = found[: config.beam_size]
        length = 8 * -(-(1 + max(len(reading.ids) for reading in found)) // 8)  # few shapes
        texts = np.full((config.beam_size, length), -1, np.int32)
        for i, reading in enumerate(found):
            texts[i, : len(reading.ids) + 1] = *reading.ids, self.eos_id
        nats = np.asarray(self._score(params, features[row], mask[row], texts))
        share = config.weight
        rank = [share * r.score - (1 - share) * n for r, n in zip(found, nats, strict=False)]
        return found[int(np.argmax(rank))]

    def _log_probs(self, params, features, mask):
        found = self.model.apply(params, features, mask)
        return jax.nn.log_softmax(found["ctc"]), found["real"]

    def _decoder_nats(self, params, features, mask, texts):
        """-log p of each text [n, t], which ends in the end token and is padded with -1."""
        rows = lambda x: jnp.broadcast_to(x, (len(texts), *x.shape))  # noqa: E731
        labels = jnp.maximum(texts, 0)
        before = jnp.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=self.bos_id)
        found = self.model.apply(params, rows(features), rows(mask), None, before)
        scores = token_scores(found["attention"], labels)
        return jnp.where(texts >= 0, scores.logsumexp - scores.chosen, 0).sum(axis=1)

    def _searched(self, params, features, mask):
        """The decoder's own search, for texts of at most one token for each state."""
        most = -(-features.shape[1] // self.model.config.stride) + 1
        init = partial(self.model.apply, params, method="init_cache")
        step = lambda tokens, cache: self.model.apply(params, tokens, cache, method="step")  # noqa: E731
        start = jnp.full(len(features), self.bos_id)
        ids = {"eos_id": self.eos_id, "pad_id": self.pad_id}
        cache = init(features, mask, most)
        return search(step, cache, start, self.decode, max_new_tokens=most, real=mask[:, 0], **ids)


class CTCTranscriber:
    """Maps parameters and audio to segments of text, part by part, in constant memory.

    A part is at most `ctc.seconds` long and ends at the quietest moment of its last third."""

    def __init__(
        self,
        reader: CTCReader,
        features: Callable[[np.ndarray], np.ndarray],
        changes: Mapping[str, Any],
    ):
        for name, value in changes.items():
            if value not in ("en", "transcribe", False):
                raise LabError(f"{name} = {value}: this model only writes down what it was taught")
        self.reader, self.features = reader, features
        frames = min(round(reader.config.seconds * RATE / HOP), reader.model.config.max_length)
        self.frames = max(frames // reader.model.config.stride, 1) * reader.model.config.stride

    def __call__(self, params: Any, audio: Audio) -> Iterator[Segment]:
        """The segments in order, yielded as soon as they are read; silent parts give none."""
        place, size = 0, self.frames * HOP
        while len(samples := audio.take(place, size)) >= HOP:
            if len(samples) == size:  # perhaps more follows
                samples = samples[: quietest(samples)]
            sound = np.zeros((1, size + WINDOW), np.float32)
            sound[0, : len(samples)] = samples
            mask = np.arange(self.frames)[None] < -(-len(samples) // HOP)
            features = np.where(mask[..., None], self.features(sound)[:, : self.frames], 0)
            said = self.reader(params, features, mask)[0]
            if said.text:
                times = round(place / RATE, 3), round((place + len(samples)) / RATE, 3)
                yield Segment(*times, said.text, said.log_prob, 0.0, 0.0)
            place += len(samples)


def quietest(samples: Float[np.ndarray, "n"]) -> int:
    """The middle of the quietest tenth of a second in the last third of the samples."""
    width, first = RATE // 10, 2 * len(samples) // 3
    energy = np.cumsum(np.square(samples[first:], dtype=np.float64))
    if len(energy) <= width:
        return len(samples)
    return first + int((energy[width:] - energy[:-width]).argmin()) + width // 2
