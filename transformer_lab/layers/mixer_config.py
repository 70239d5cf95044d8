"""The settings of what mixes positions where attention does not, and of the feed-forward's kind."""

from dataclasses import dataclass

from transformer_lab.errors import LabError, known
from transformer_lab.ops.scan import WAYS

KINDS = ("attention", "linear", "retention", "gated", "s4d", "mamba", "mamba2", "rwkv")
MAPS = ("elu", "relu", "exponential", "taylor")


@dataclass(frozen=True)
class MixerConfig:
    """Which mixer, and its sizes; of those that it does not have, nothing is read."""

    kind: str = "attention"  # attention, linear, retention, gated, s4d, mamba, mamba2 or rwkv
    feature_map: str = "elu"  # of linear: elu + 1, relu, exponential or the softmax's Taylor series
    value_dim: int = 0  # of a head of linear, retention and gated; 0: as head_dim
    gate_rank: int = 16  # of gated: the width between the input and its decays
    inner_width: int = 1024  # channels of s4d, mamba, mamba2
    state: int = 16  # N, numbers that a channel (mamba2: a head's entry) keeps
    convolution: int = 4  # steps that mamba's and mamba2's first convolution sees
    step_rank: int = 32  # of mamba: the width between the input and its step sizes
    state_heads: int = 16  # of mamba2, whose width is inner_width / state_heads
    state_groups: int = 1  # of mamba2: heads of a group share what they write and read by
    inner_norms: bool = False  # of mamba: step, input and output by RMSNorm (Jamba, Lieber 2024)
    bias: bool = False  # of mamba's and mamba2's projections
    step_min: float = 1e-3  # the smallest and the largest step size at the start
    step_max: float = 0.1
    norm_epsilon: float = 1e-5  # of the norms inside of a mixer
    way: str = "auto"  # of the recurrence: steps, associative, chunks; auto: by the mixer
    chunk: int = 64

    def __post_init__(self):
        known("model.mixer.kind = ", self.kind, KINDS)
        known("model.mixer.feature_map = ", self.feature_map, MAPS)
        known("model.mixer.way = ", self.way, ("auto", *WAYS))
        for name in ("inner_width", "state", "convolution", "step_rank", "state_heads",
                     "state_groups", "gate_rank", "chunk"):  # fmt: skip
            if getattr(self, name) < 1:
                raise LabError(f"model.mixer.{name} = {getattr(self, name)} must be at least 1")
        for heads, width in (("state_heads", "inner_width"), ("state_groups", "state_heads")):
            if self.kind == "mamba2" and getattr(self, width) % getattr(self, heads):
                raise LabError(
                    f"model.mixer.{width} = {getattr(self, width)} is not a multiple of "
                    f"model.mixer.{heads} = {getattr(self, heads)}"
                )
        if not 0 < self.step_min <= self.step_max:
            raise LabError(
                f"model.mixer.step_min = {self.step_min} must be above 0 and at most "
                f"model.mixer.step_max = {self.step_max}"
            )
