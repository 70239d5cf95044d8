"""Autoregressive image modelling: a model predicts grey levels row by row (iGPT, Chen 2020)."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import UInt8

from transformer_lab import text
from transformer_lab.data.batching import RowsConfig
from transformer_lab.data.images import pixels, sources
from transformer_lab.data.splits import SPLITS, Splits
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.generate import Generator
from transformer_lab.errors import LabError
from transformer_lab.ops.losses import Pair
from transformer_lab.tasks.base import Batch, Params, Place, Scores
from transformer_lab.tasks.language_modeling import LanguageModeling, LanguageModelingConfig


@dataclass(frozen=True)
class ImageModelingConfig(LanguageModelingConfig):
    """Settings of image modelling; each image is a document of a language model."""

    layout: str = "packed"
    shrink: int = 2  # squares of this side become one pixel, their mean
    levels: int = 16  # grey levels
    samples: int = 8  # images completed at the end ...
    completions: int = 4  # ... this many times each
    sample_prompt: int = 0  # pixels of an image that are given; 0: its upper half

    def __post_init__(self):
        super().__post_init__()
        if self.layout != "packed" or self.other_lengths:
            raise LabError('images need task.layout = "packed" and task.other_lengths = ()')
        if not 2 <= self.levels <= len(pixels.LEVELS):
            raise LabError(f"task.levels = {self.levels} is not within 2 and {len(pixels.LEVELS)}")
        if min(self.shrink, self.completions) < 1 or self.sample_prompt < 0:
            raise LabError(
                "task.shrink and completions must be at least 1, sample_prompt 0 or more"
            )


SECTIONS = {
    "task": ImageModelingConfig,
    "data": sources.ImageConfig,
    "batch": RowsConfig,
    "decode": DecodeConfig,
}


class ImageModeling(LanguageModeling):
    """Language modelling of images as texts, a character a pixel: level i has the id 4 + i.

    A row of a batch holds whole images. `bits_per_pixel` counts the end token's bits too. Two
    images of four pixels in the levels 0, 1, 2, 0 and 0, 1, 2, 3, after the start token (2):

        tokens   [[2, 4, 5, 6, 4], [2, 4, 5, 6, 7]]
        targets  [[4, 5, 6, 4, 1], [4, 5, 6, 7, 1]]
        mask     [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]
        bytes    [4, 4]
    """

    PREPARED, COUNTED = "", "images"
    generator = None  # an image's beginning is continued by `completions`, and is no prompt

    def find_tokenizer(self) -> text.Tokenizer:
        letters = pixels.LEVELS[: self.config.levels]
        if self.assets_given:
            found = text.load(self.assets_given)
        else:
            found = text.train(text.TokenizerConfig(kind="char"), [letters])
        self.first = found.encode(letters)[0]
        if found.vocab_size != self.first + len(letters):
            raise LabError(f"task.levels = {len(letters)}, but the checkpoint's are others")
        return found

    @cached_property
    def _splits(self) -> sources.ImageSplits:
        return sources.load_images(replace(self.sections["data"], channels=1))

    @cached_property
    def images(self) -> dict[str, UInt8[np.ndarray, "n h w"]]:
        """The grey levels (0 to `levels` - 1) of each split's images, shrunk as configured."""
        found, task, length = {}, self.config, self.sections["batch"].length
        for split in SPLITS:
            rows = getattr(self._splits, split)
            whole = np.zeros((len(rows), *self._splits.train.size), np.uint8)
            for i, row in enumerate(rows):
                whole[i] = row["image"][..., 0]
            found[split] = pixels.to_levels(whole, task.shrink, task.levels)
        size = found["train"][0].size
        if min(length, self.eval_length) <= size or task.sample_prompt >= size:
            raise LabError(
                f"an image has {size} pixels: batch.length = {length} and task.eval_length must be "
                f"{size + 1} or more, task.sample_prompt less"
            )
        return found

    @cached_property
    def data(self) -> Splits:
        texts = {split: pixels.to_texts(self.images[split]) for split in SPLITS}
        return Splits(**texts, report=self._splits.report,
                                   licence=self._splits.licence)  # fmt: skip

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        found = super().metrics(params, batch)
        return {"bits_per_pixel": found.pop("bits_per_byte"), **found}

    def given(self, images: UInt8[np.ndarray, "n h w"]) -> int:
        """The number of first pixels from which a completion starts."""
        return self.config.sample_prompt or images.shape[1] // 2 * images.shape[2]

    def completions(
        self, params: Params, images: UInt8[np.ndarray, "n h w"], place: Place, seed: int = 0
    ) -> UInt8[np.ndarray, "n c h w"]:
        """For each image `task.completions` samples that continue its given first pixels."""
        flat, given = images.reshape(len(images), -1), self.given(images)
        rest, levels = flat.shape[1] - given, range(self.first, self.first + self.config.levels)
        no_level = set(range(self.model_config.vocab_size)) - set(levels)
        decode = replace(
            self.sections["decode"], max_new_tokens=rest, banned_tokens=tuple(sorted(no_level))
        )
        generate = Generator(
            self.model, decode, eos_id=self.tokenizer.eos_id,
            rows_multiple=self.rows_multiple, place=place,
        )  # fmt: skip
        ids = self.first + flat[:, :given].astype(int)
        prompts = [[self.start_id, *row] for row in ids.tolist()]
        found = generate(params, prompts, self.config.completions, seed)
        made = np.array([[one.ids for one in some] for some in found], np.int32) - self.first
        start = np.broadcast_to(flat[:, None, :given], (*made.shape[:2], given))
        whole = np.concatenate([start, made.astype(np.uint8)], axis=2)
        return whole.reshape(*made.shape[:2], *images.shape[1:])

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """For a trained model: bits per pixel of a guess that sees no context, and a picture with a
        row for each image: the given half, the completions, and the image."""
        images = self.images[split]
        if not final or not len(images):
            return Scores()
        levels, some = self.config.levels, images[: self.config.samples]
        values = {"bits_per_pixel_blind": pixels.blind_bits(self.images["train"], images, levels)}
        if not len(some):
            return Scores(values)
        half = some.astype(float)
        half.reshape(len(some), -1)[:, self.given(some) :] = np.nan
        made = self.completions(params, some, place)
        rows = np.concatenate([half[:, None], made, some[:, None]], axis=1)
        return Scores(values, files={"completions.png": pixels.sheet(rows, levels)})

    def details(self) -> list[str]:
        _, height, width = self.images["train"].shape
        return [f"{height} x {width} pixels of {self.config.levels} levels; {self.describe_plan()}"]


build = ImageModeling
