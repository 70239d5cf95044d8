"""Contrastive training on images, captions and recordings of them (VATT: Akbari 2021)."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from transformer_lab import text
from transformer_lab.data.batching import RowsConfig
from transformer_lab.data.described import Described, DescribedConfig, load_described
from transformer_lab.data.drawings import plain, read_pictures, varied
from transformer_lab.data.spec_augment import SpecAugmentConfig, hide_stripes
from transformer_lab.data.spectra import Spectra, spectra
from transformer_lab.data.splits import SPLITS, key
from transformer_lab.models.base import ThreeTowers
from transformer_lab.ops.spectrograms import RATE, log_mel
from transformer_lab.tasks.base import HostBatch, Params, Place, Scores
from transformer_lab.tasks.building import Shapes, shapes_of
from transformer_lab.tasks.contrastive import Contrastive, ContrastiveConfig
from transformer_lab.tasks.naming import recalls

SIDE = 64  # pixels of a stored picture
LATE = 20  # the most frames of 10 ms by which a recording is moved in training
SECTIONS = {
    "task": ContrastiveConfig,
    "data": DescribedConfig,
    "batch": RowsConfig,
    "augment": SpecAugmentConfig,
    "tokenizer": text.TokenizerConfig,
}
_log_mel = jax.jit(log_mel, static_argnums=1)


class ContrastiveSound(Contrastive):
    """Trains vectors of images, captions and recordings to be near for those that belong together.

    The loss is the mean over the three pairs of kinds; a batch has each image once, described in
    one of the languages. It holds `image`, `tokens` and `tokens_mask` as two towers do, and `sound`
    (float32 [rows, frames, bands]), the spectrum of the caption read aloud, cut to or filled up to
    the tower's frames. A green box as one pixel, with three frames of two bands of silence:

        image        [[[[112, 255, 112]]]]
        tokens       [[2, 5, 6, 3, 4, 1]]
        tokens_mask  [[1, 1, 1, 1, 1, 1]]
        sound        [[[-1.5, -1.5], [-1.5, -1.5], [-1.5, -1.5]]]
    """

    NEEDS, COUNTED, load_data = ThreeTowers, "pictures", load_described
    PAIRS = tuple(combinations(("image", "text", "sound"), 2))

    # Data.

    def train_texts(self) -> Iterator[str]:
        return (said for row in self.data.train for said in row.text.values())

    @cached_property
    def _stored(self) -> tuple[dict[str, int], np.ndarray, dict[str, Spectra]]:
        """The number of each name over all splits, and by it the pictures and, by language, the
        spectra."""
        every = [row for split in SPLITS for row in self.examples(split)]
        bands = self.model_config.sound.image_size[1]
        compute = lambda sound: np.asarray(_log_mel(sound, bands))  # noqa: E731
        sound = {
            language: spectra([row.sounds[language] for row in every], bands, RATE, compute)
            for language in self.sections["data"].languages
        }
        pictures = read_pictures([row.picture for row in every], SIDE)
        return {row.name: i for i, row in enumerate(every)}, pictures, sound

    def heard(
        self, row: Described, language: str, rng: np.random.Generator | None = None
    ) -> Float[np.ndarray, "frames bands"]:
        """The spectrum of a recording, filled up with its least value; with random numbers it is
        moved by up to LATE frames, and stripes of it are hidden."""
        numbers, _, sound = self._stored
        spectrum, late = sound[language][numbers[row.name]], 0
        found = np.full(self.model_config.sound.image_size, spectrum.min(), np.float32)
        if rng is not None:
            late = int(rng.integers(min(LATE, len(found) // 4) + 1))
            spectrum = hide_stripes(spectrum, rng.integers(2**31), self.sections["augment"])
        part = spectrum[: len(found) - late]
        found[late : late + len(part)] = part
        return found

    def _batch(self, rows: Sequence[tuple[Described, str]], real: np.ndarray, rng=None):
        """A batch of rows, each in a language; varied where random numbers are given."""
        numbers, pictures, _ = self._stored
        pictures = pictures[[numbers[row.name] for row, _ in rows]]
        if rng is not None and (strength := self.config.strength):
            images = varied(pictures, self.size, np.zeros(len(rows), bool), rng, strength)
        else:
            images = plain(pictures, self.size)
        sound = np.stack([self.heard(*row, rng) for row in rows])
        return self._filled(images, [row.text[said] for row, said in rows], real, sound=sound)

    def load_train(self, ids: np.ndarray, _: Any) -> HostBatch:
        """A training batch; each row's language and variation follow from the random seeds."""
        real, rng = ids[:, 0] >= 0, np.random.default_rng(ids[:, 1])
        said = rng.choice(self.sections["data"].languages, int(real.sum())).tolist()
        rows = zip([self.data.train[i] for i in ids[real, 0]], said, strict=True)
        return self._batch(list(rows), real, rng)

    def abstract_batch(self) -> Shapes:
        sound = shapes_of((self.rows, *self.model_config.sound.image_size), sound=np.float32)
        return {**super().abstract_batch(), **sound}

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        """Each picture once in each language, unchanged."""
        languages = self.sections["data"].languages
        rows = [(row, language) for language in languages for row in self.examples(split)]
        for first in range(0, len(rows), self.rows):
            some = rows[first : first + self.rows]
            yield self._batch(some, np.arange(self.rows) < len(some))

    # Scores.

    @cached_property
    def _encoders(self) -> dict:
        hear = lambda p, b: self.apply(p, b["sound"], method="encode_sounds")  # noqa: E731
        return {**super()._encoders, "sound": jax.jit(hear)}

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """Recall at 1 and 10 in both directions between each two kinds, in each language, among the
        split's pictures of different descriptions; `chance_1` and `chance_10` beside them."""
        found, samples = {}, []
        for language in self.sections["data"].languages:
            rows = list({key(row.text[language]): row for row in self.examples(split)}.values())
            if not rows:
                return Scores()
            numbers, pictures, _ = self._stored
            pictures = plain(pictures[[numbers[row.name] for row in rows]], self.size)
            sounds = np.stack([self.heard(row, language) for row in rows])
            texts = [row.text[language] for row in rows]
            vectors = {
                "image": self.image_vectors(params, pictures, place),
                "text": self.text_vectors(params, texts, place),
                "sound": self._vectors(params, "sound", sounds, place),
            }
            for a, b in self.PAIRS:
                near, own = vectors[a] @ vectors[b].T, np.arange(len(rows))
                found |= recalls(f"{language}_{a}_to_{b}_recall_", near, own, (1, 10))
                found |= recalls(f"{language}_{b}_to_{a}_recall_", near.T, own, (1, 10))
            found |= {f"{language}_chance_{k}": min(k / len(rows), 1.0) for k in (1, 10)}
            near = np.argmax(vectors["sound"] @ vectors["text"].T, axis=1)[: self.shown(final)]
            samples += [(rows[i].name, texts[j], texts[i]) for i, j in enumerate(near)]
        return Scores(found, samples)


build = ContrastiveSound
