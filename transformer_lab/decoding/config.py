"""The settings of decoding: how an output is searched for, and what it may contain."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from transformer_lab.errors import LabError, chosen, within

BASES = ("float32", "bfloat16", "int8", "nf4")  # how kernels that do not train may be stored
CHOICES = {
    "length_penalty": ("gnmt", "power"),
    "early_stopping": ("exact", "heuristic", "first"),
    "weights": BASES,
}
RANGES = {
    "beam_size": (1, math.inf),
    "n_best": (1, math.inf),
    "batch_size": (1, math.inf),
    "alpha": (-10, 10),  # beyond it float32 penalties of long texts overflow
    "max_new_tokens": (0, math.inf),
    "min_new_tokens": (0, math.inf),
    "no_repeat_ngram": (0, math.inf),
    "latest_start": (0, math.inf),
    "repetition_penalty": (0, math.inf),
    "temperature": (0, math.inf),
    "top_k": (0, math.inf),
    "top_p": (0, 1),
}


@dataclass(frozen=True)
class DecodeConfig:
    """Greedy, sampling or beam search; a hypothesis scores log-probability / penalty(length).

    The length counts the generated tokens with the end token, but not the start token. A beam of 1
    is greedy decoding, whatever `alpha` and `early_stopping` are.
    """

    beam_size: int = 1  # 1: greedy
    n_best: int = 1  # hypotheses returned for each source, at most beam_size
    length_penalty: str = "gnmt"  # ((5 + length) / 6)^alpha (Wu 2016, eq. 14); power: length^alpha
    alpha: float = 0.6  # 0: no penalty; the larger, the longer the output
    # exact: a sentence stops once no live beam can still enter its n_best at any length; heuristic:
    # once the best live beam, scored at its present length, is below all beam_size finished ones
    # (Hugging Face's early_stopping=False); first: once beam_size are finished (its True).
    early_stopping: str = "exact"
    max_new_tokens: int = 0  # end token included; 0: as the task says
    batch_size: int = 64  # texts that are decoded at once
    banned_tokens: tuple[int, ...] = ()  # never generated, such as padding
    first_banned_tokens: tuple[int, ...] = ()  # never the first of an output
    # The token of 0.00 s, of a model that writes times, one token for each 0.02 s: an output begins
    # with a time, at most so many steps late, and texts stand between times that never go back
    # (Radford 2023, section 2.3; see `processors`). None: no token is a time
    zero_time: int | None = None
    latest_start: int = 50  # the steps of 0.02 s within which an output begins
    # Layer and number of the heads whose attention follows speech; (): all of the upper half
    alignment_heads: tuple[tuple[int, ...], ...] = ()
    renormalize: bool = False  # the banned tokens' probability goes to the others
    min_new_tokens: int = 0  # no output ends before so many tokens
    # No sequence of n tokens comes twice (Paulus 2017), prompt included; 0: no such rule.
    no_repeat_ngram: int = 0
    # Logits of earlier tokens are divided by it, negative ones multiplied (Keskar 2019); 1: none.
    repetition_penalty: float = 1.0
    temperature: float = 0.0  # sampling from softmax(logits / temperature); 0: the likeliest token
    top_k: int = 0  # samples only from the k likeliest tokens; 0: from all
    top_p: float = 1.0  # samples only from the fewest tokens with so much probability; 0: one
    stop: tuple[str, ...] = ()  # a continuation ends before the first of these strings
    end_tokens: tuple[int, ...] = ()  # end a text as well as the tokenizer's own end token
    first_token: int | None = None  # the token that begins every output, at no cost
    force_eos: bool = False  # a text that reaches the limit ends in the end token, at no cost
    # How the kernels of an opened run lie in memory (see `training.adapting.pack`): each step makes
    # the numbers it computes with anew from them
    weights: str = "float32"

    def __post_init__(self):
        for name, (low, high) in RANGES.items():
            within(f"decode.{name}", getattr(self, name), low, high)
        for name in ("banned_tokens", "first_banned_tokens", "end_tokens"):
            within(f"decode.{name}", min(getattr(self, name), default=0), 0)
        for name in ("first_token", "zero_time"):
            within(f"decode.{name}", getattr(self, name) or 0, 0)
        if any(len(pair) != 2 or min(pair) < 0 for pair in self.alignment_heads):
            raise LabError(
                f"decode.alignment_heads = {self.alignment_heads} must be pairs of a layer and a "
                "head"
            )
        if self.n_best > self.beam_size:
            raise LabError(
                f"decode.n_best = {self.n_best} needs decode.beam_size >= {self.n_best}, "
                f"it is {self.beam_size}"
            )
        chosen(self, "decode", CHOICES)
        if self.repetition_penalty == 0:
            raise LabError("decode.repetition_penalty = 0 divides by nothing: 1 is none")
        if self.beam_size > 1 and (self.temperature or self.top_k or self.top_p < 1):
            raise LabError(
                f"decode.temperature = {self.temperature}, decode.top_k = {self.top_k} and "
                f"decode.top_p = {self.top_p} are for sampling, decode.beam_size > 1 searches: "
                "set one of the two"
            )
        if "" in self.stop:
            raise LabError("decode.stop holds an empty string: unset it, or name what ends a text")

    def penalties(self, longest: int) -> Float[np.ndarray, "lengths"]:
        """The divisor of the log-probability for each length 0 .. longest; that of 0 is unused."""
        lengths = np.maximum(np.arange(longest + 1, dtype=np.float64), 1)
        base = (5 + lengths) / 6 if self.length_penalty == "gnmt" else lengths
        return (base**self.alpha).astype(np.float32)
