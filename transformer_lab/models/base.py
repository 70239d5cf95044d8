"""What every family's module is, and what it offers to tasks, decoding and viewing.

A task names one of the protocols here, and `models.need` refuses a family that lacks any of it. The
letters of shapes: b rows, t and s tokens, v vocabulary, d width, h and w pixels, c channels.
"""

from typing import Any, ClassVar, Protocol, runtime_checkable

import flax.linen as nn
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.errors import LabError
from transformer_lab.layers.told import COLLECTIONS, hear, listening
from transformer_lab.ops.losses import STATISTICS, TokenScores

Cache = dict[str, Any]  # a tree of arrays that goes into a step and comes out of it


class Model(nn.Module):
    """The outermost module of a family, a function of one tree of parameters.

    Running statistics, of a model that has any, stand in that tree under the top key `batch_stats`.
    What modules tell in a call of `apply` (see `layers.told`) goes to the function that listens.
    """

    def __post_init__(self):
        config = self.config
        if isinstance(config, Vocabulary) and config.vocab_size is None:
            raise LabError("model.vocab_size is not set and there is no tokenizer to take it from")
        super().__post_init__()

    @property
    def reads_prefix(self) -> bool:
        """Whether tokens of a given prefix see each other both ways: a language model that says so
        takes `prefix` [b t], True at those tokens, and in `prefill` reads all of a prompt so."""
        return False

    @nn.nowrap
    def init(self, key: Key[Array, ""], *inputs: Any, **more: Any) -> dict[str, Any]:
        """{"params": the tree}, of a smallest call's arguments."""
        variables = super().init(key, *inputs, **more)
        statistics = {name: tree for name, tree in variables.items() if name == STATISTICS}
        return {"params": {**variables["params"], **statistics}}

    @nn.nowrap
    def apply(self, variables: dict[str, Any], *inputs: Any, mutable: Any = False, **more: Any):
        """As Flax's own. `mutable` may be the name of a collection, or a list of names."""
        params = variables["params"]
        if STATISTICS in params:
            params = {name: tree for name, tree in params.items() if name != STATISTICS}
            variables = {STATISTICS: variables["params"][STATISTICS], **variables, "params": params}
        if not listening():
            return super().apply(variables, *inputs, mutable=mutable, **more)
        wanted = [mutable] if isinstance(mutable, str) else list(mutable or ())
        out, left = super().apply(variables, *inputs, mutable=[*wanted, *COLLECTIONS], **more)
        hear(left)
        return (out, left) if wanted else out


@runtime_checkable
class Computed(Protocol):
    """Settings of a model that may compute in another type than float32."""

    dtype: str


@runtime_checkable
class Vocabulary(Protocol):
    """Settings of a model that reads tokens."""

    vocab_size: int | None  # None: the tokenizer's, which the task fills in
    max_length: int  # tokens of a row at most


@runtime_checkable
class Pictures(Protocol):
    """Settings of a model that reads images and tells their classes."""

    image_size: tuple[int, int]  # height, width
    channels: int
    classes: int
    head: str  # "classes", or "none"


@runtime_checkable
class Texts(Vocabulary, Protocol):
    """Settings of a model that reads a text at once."""

    HEADS: ClassVar[tuple[str, ...]]  # what `head` may be
    head: str  # what is made of the states; the task sets it
    labels: int  # outputs of the heads "classes" and "tokens"
    types: int  # kinds of tokens that have a vector, such as the first and the second text


@runtime_checkable
class Towers(Protocol):
    """Settings of a pair of towers."""

    text: Any  # the settings of the text tower
    tower: Any  # the settings of the image tower
    eos_id: int  # the tokenizer's
    common_width: int  # of the vectors


class LanguageModel(Protocol):
    """Tokens to logits of the next one, all at once and step by step."""

    config: Vocabulary

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        segments: Int[Array, "b t"] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t v"] | TokenScores:
        """Logits after each token; given labels, their scores in the logits' stead. Segments number
        the documents that share a row, which do not see each other; 0 is padding."""

    def prefill(
        self, tokens: Int[Array, "b t"], segments: Int[Array, "b t"] | None, length: int
    ) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each token of the prompts, whose padding (segment 0) stands on the left, and
        a cache with room for `length` tokens. Each leaf of a cache has the rows first, or a 0-d
        array that all rows share."""

    def step(self, tokens: Int[Array, "b t"], cache: Cache) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next tokens, and the cache that holds them."""


class SequenceToSequence(Protocol):
    """A source and the target so far to logits of the next target token."""

    config: Vocabulary

    def __call__(
        self,
        source: Int[Array, "b s"],
        source_mask: Bool[Array, "b s"],
        target: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t v"] | TokenScores:
        """Logits after each target token, of which the first is the start token; given labels,
        their scores in the logits' stead. The mask is True at real tokens."""

    def init_cache(
        self, source: Int[Array, "b s"], source_mask: Bool[Array, "b s"], length: int
    ) -> Cache:
        """Reads the source, with room for `length` target tokens."""

    def step(self, tokens: Int[Array, "b t"], cache: Cache) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next target tokens, and the cache that holds them."""


@runtime_checkable
class Heard(Vocabulary, Protocol):
    """Settings of a model that reads windows of audio."""

    bins: int  # bands of a frame's spectrum
    frames: int  # of a window, see `ops.spectrograms`


class SpeechToText(Protocol):
    """Windows of audio and the target so far to logits of the next target token."""

    config: Heard

    def __call__(
        self,
        features: Float[Array, "b f m"],
        target: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t v"] | TokenScores:
        """Logits after each target token, of which the first is the start token; given labels,
        their scores in the logits' stead. A window is read as a whole, with the silence in it."""

    def init_cache(self, features: Float[Array, "b f m"], length: int) -> Cache:
        """Reads the windows, with room for `length` target tokens."""

    def step(self, tokens: Int[Array, "b t"], cache: Cache) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next target tokens, and the cache that holds them."""


class PackedSequenceToSequence(SequenceToSequence, Protocol):
    """The same of several pairs in a row, which segments number from 1; 0 is padding."""

    def __call__(
        self, source, source_mask, target, dropout_key, source_segments, target_segments, labels
    ): ...


class TextEncoder(Protocol):
    """A text to states, and to what the head makes of them."""

    config: Texts

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        mask: Bool[Array, "b t"] | None = None,
        types: Int[Array, "b t"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
    ) -> dict[str, Float[Array, "..."]]:
        """`states` [b t d], and `logits` as the head has them: [b labels] of "classes", [b t
        labels] of "tokens". The mask is True at real tokens."""


class ImageEncoder(Protocol):
    """An image to features, and to logits of classes."""

    config: Pictures

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
    ) -> dict[str, Float[Array, "b ..."]]:
        """`features` [b d] and `logits` [b classes]. Images that are not real `rows` enter no
        running statistic."""


class TwoTowers(Protocol):
    """Images and texts to vectors of length 1 in one space."""

    config: Towers

    def encode_images(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
    ) -> Float[Array, "b d"]:
        """A vector an image."""

    def encode_texts(
        self,
        tokens: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        seen: Bool[Array, "b t"] | None = None,
    ) -> Float[Array, "b d"]:
        """A vector a text."""

    def temperature(self) -> dict[str, Float[Array, ""]]:
        """`scale` and `bias` of the logits: scale * image . text + bias."""


class WordModel(Protocol):
    """Words to the logits of words beside them."""

    def __call__(
        self, inputs: Int[Array, "b i"], mask: Bool[Array, "b i"], outputs: Int[Array, "b o k"]
    ) -> Float[Array, "b o k"]:
        """Of the mean of the inputs under the mask."""
