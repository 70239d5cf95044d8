"""Protocols: what models offer to tasks, decoding and viewing.

A task names one of the protocols here, and `models.need` refuses a family that lacks any of it. The
letters of shapes: b batch, t and s tokens, v vocabulary, d model dim, h and w pixels, c channels.
"""

from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.ops.losses import TokenScores

Cache = dict[str, Any]  # a tree of arrays that a decoding step takes and returns


@runtime_checkable
class Computed(Protocol):
    """Settings of a model that may compute in another type than float32 (`dtype`)."""

    dtype: str


@runtime_checkable
class Vocabulary(Protocol):
    """Settings of a model that takes token ids as input."""

    vocab_size: int | None  # None: the tokenizer's, which the task fills in
    max_length: int  # the most tokens of an input


@runtime_checkable
class Sees(Protocol):
    """Settings of a model that reads images alone."""

    image_size: tuple[int, int]  # height, width
    channels: int


@runtime_checkable
class Finds(Sees, Protocol):
    """Settings of a model that finds the objects of an image."""

    queries: int  # the objects that it may find in an image
    labels: int  # classes of objects
    grid: tuple[int, int] | None  # rows and columns of the cells that queries are; None: a set

    def of_size(self, size: tuple[int, int], labels: int) -> "Finds":
        """The same settings for images of this height and width, and so many classes."""


@runtime_checkable
class Pictures(Sees, Protocol):
    """Settings of a model that classifies images."""

    classes: int
    head: str  # "classes", or "none"


@runtime_checkable
class Clips(Pictures, Protocol):
    """Settings of a model that classifies clips of several frames."""

    frames: int


@runtime_checkable
class Patches(Pictures, Protocol):
    """Settings of a model whose attention sees all patches of an image in one sequence."""

    grid: tuple[int, int]  # rows and columns of patches
    layers: int


@runtime_checkable
class Texts(Vocabulary, Protocol):
    """Settings of a model that takes a whole text, and has a head on its states."""

    HEADS: ClassVar[tuple[str, ...]]  # what `head` may be
    head: str  # which output is computed from the states; the task sets it
    labels: int  # outputs of the heads "classes" and "tokens"
    types: int  # token types with a vector, such as first and second text


@runtime_checkable
class Towers(Protocol):
    """Settings of a model with an image tower and a text tower."""

    text: Any  # the settings of the text tower
    tower: Any  # the settings of the image tower
    eos_id: int  # the tokenizer's
    common_width: int  # length of the vectors that both towers give


@runtime_checkable
class Foresees(Protocol):
    """Settings of a model that predicts the next steps of a series."""

    context: int  # steps of the past that are read
    horizon: int  # steps that are predicted
    covariates: int  # numbers that are known of each step
    outputs: int  # numbers for each step to come


class Forecaster(Protocol):
    """Predicts the next steps of series, all at once, from their past and from covariates."""

    config: Foresees

    def __call__(
        self,
        values: Float[Array, "b t"],
        seen: Bool[Array, "b t"],
        covariates: Float[Array, "b s c"],
        dropout_key: Key[Array, ""] | None = None,
    ) -> Float[Array, "b h o"]:
        """The outputs of h steps, from t steps of the past, scaled and 0 where they are not `seen`;
        s = t + h."""


class LanguageModel(Protocol):
    """Computes logits of the next token, for all positions at once or step by step."""

    config: Vocabulary

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        segments: Int[Array, "b t"] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t v"] | TokenScores:
        """Logits after each token; given labels, the labels' scores instead. Segments number the
        documents packed into one sequence, which do not see each other; 0 is padding."""

    def prefill(
        self, tokens: Int[Array, "b t"], segments: Int[Array, "b t"] | None, length: int
    ) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each token of the prompts, and a cache with room for `length` tokens.

        Padding (segment 0) is on the left. Each array of a cache has the batch as its first axis,
        or is 0-d and shared by the whole batch.
        """

    def step(self, tokens: Int[Array, "b t"], cache: Cache) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next tokens, and the cache with these tokens added."""


class SequenceToSequence(Protocol):
    """Computes logits of the next target token from a source and the target so far."""

    config: Vocabulary

    def __call__(
        self,
        source: Int[Array, "b s"],
        source_mask: Bool[Array, "b s"],
        target: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t v"] | TokenScores:
        """Logits after each target token, the first of which is the start token; given labels, the
        labels' scores instead. The mask is True at real tokens."""

    def init_cache(
        self, source: Int[Array, "b s"], source_mask: Bool[Array, "b s"], length: int
    ) -> Cache:
        """Encodes the source; returns a cache with room for `length` target tokens."""

    def step(self, tokens: Int[Array, "b t"], cache: Cache) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next target tokens, and the cache with these tokens added."""


@runtime_checkable
class Heard(Vocabulary, Protocol):
    """Settings of a model that takes fixed windows of audio."""

    bins: int  # bands of a frame's spectrum
    frames: int  # spectra in a window, see `ops.spectrograms`


class SpeechToText(Protocol):
    """Computes logits of the next target token from a window of audio and the target so far."""

    config: Heard

    def __call__(
        self,
        features: Float[Array, "b f m"],
        target: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t v"] | TokenScores:
        """Logits after each target token, the first of which is the start token; given labels, the
        labels' scores instead. A window is read as a whole, with the silence in it."""

    def init_cache(self, features: Float[Array, "b f m"], length: int) -> Cache:
        """Encodes the windows; returns a cache with room for `length` target tokens."""

    def step(self, tokens: Int[Array, "b t"], cache: Cache) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next target tokens, and the cache with these tokens added."""


@runtime_checkable
class Framed(Vocabulary, Protocol):
    """Settings of a model that takes audio of any length up to `max_length` frames."""

    bins: int  # bands of a frame's spectrum, see `ops.spectrograms`
    stride: int  # frames for each of the states that CTC reads
    decodes: bool  # whether there is a decoder beside CTC


class FramesToText(Protocol):
    """Computes CTC's logits for the states of recordings, and a decoder's if there is one."""

    config: Framed

    def __call__(
        self,
        features: Float[Array, "b f m"],
        mask: Bool[Array, "b f"],
        dropout_key: Key[Array, ""] | None = None,
        target: Int[Array, "b t"] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> dict[str, Any]:
        """`ctc` [b s v] and the mask `real` [b s] of states; with a target, whose first token is
        the start token, also `attention`: logits [b t v], or given labels their scores."""

    def encode(
        self,
        features: Float[Array, "b f m"],
        mask: Bool[Array, "b f"],
        dropout_key: Key[Array, ""] | None = None,
    ) -> tuple[Float[Array, "b s d"], Bool[Array, "b s"]]:
        """The states of the recordings, and which of them are real."""


class PackedSequenceToSequence(SequenceToSequence, Protocol):
    """The same for several source-target pairs packed into one sequence, which segments number from
    1; segment 0 is padding."""

    def __call__(
        self, source, source_mask, target, dropout_key, source_segments, target_segments, labels
    ): ...


class TextEncoder(Protocol):
    """Computes the states of a text's tokens, and the output of a head on them."""

    config: Texts

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        mask: Bool[Array, "b t"] | None = None,
        types: Int[Array, "b t"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
    ) -> dict[str, Float[Array, "..."]]:
        """`states` [b t d], and the head's `logits`. Logits are [b labels] for the head "classes",
        [b t labels] for "tokens". The mask is True at real tokens."""


class ImageEncoder(Protocol):
    """Computes features of an image, and logits of its classes."""

    config: Pictures

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
    ) -> dict[str, Float[Array, "b ..."]]:
        """`features` [b d] and `logits` [b classes]. Images where `rows` is False are padding, and
        enter no running statistics."""


class ObjectDetector(Protocol):
    """Computes, for each of its queries, the class and the box of an object, or that it found none.

    The output has `layer_logits` [l b q labels + 1], the last for no object, and `layer_boxes`
    [l b q 4]: the centre's column and row, width and height as shares of the real image, of each
    layer that is trained. The last one's are also `logits` and `boxes`."""

    config: Finds

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
        real: Bool[Array, "b h w"] | None = None,
    ) -> dict[str, Float[Array, "..."]]:
        """`real` is False at pixels that pad an image. Images where `rows` is False are padding of
        the batch, and enter no running statistics."""


class TwoTowers(Protocol):
    """Maps images and texts to vectors of length 1 in a common space."""

    config: Towers

    def encode_images(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
    ) -> Float[Array, "b d"]:
        """One vector of length 1 for each image."""

    def encode_texts(
        self,
        tokens: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        seen: Bool[Array, "b t"] | None = None,
    ) -> Float[Array, "b d"]:
        """One vector of length 1 for each text."""

    def temperature(self) -> dict[str, Float[Array, ""]]:
        """`scale` and `bias` of the logits, which are scale * image . text + bias."""


class ThreeTowers(TwoTowers, Protocol):
    """Maps sounds to vectors of length 1 in the same space."""

    def encode_sounds(
        self, sounds: Float[Array, "b f m"], dropout_key: Key[Array, ""] | None = None
    ) -> Float[Array, "b d"]:
        """One vector of length 1 for each spectrum."""


class WordModel(Protocol):
    """Computes the logits of words that may occur near the given ones."""

    def __call__(
        self, inputs: Int[Array, "b i"], mask: Bool[Array, "b i"], outputs: Int[Array, "b o k"]
    ) -> Float[Array, "b o k"]:
        """The logits of the output words, given the mean of the input words under the mask."""
