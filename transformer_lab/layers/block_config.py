"""Settings of mixers that replace attention, and of experts that replace the feed-forward."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from transformer_lab.errors import LabError, at_least, chosen, fractions
from transformer_lab.ops.activations import ACTIVATIONS, GATED
from transformer_lab.ops.experts import capacity_of
from transformer_lab.ops.scan import WAYS

MIXERS = {  # what may stand in attention's place: the module of this room, and its class there
    "linear": "linear_mixers.Linear",
    "retention": "linear_mixers.Retention",
    "gated": "linear_mixers.Gated",
    "s4d": "state_spaces.S4D",
    "mamba": "state_spaces.Mamba",
    "mamba2": "state_spaces.Mamba2",
    "rwkv": "linear_mixers.RWKV",
}
KINDS = ("attention", *MIXERS)
MAPS = ("elu", "relu", "exponential", "taylor")


def mixer_of(kind: str) -> Any:
    """The class of a mixer that is not attention (see `layers.mixing.Mixer`)."""
    module, name = MIXERS[kind].split(".")
    return getattr(import_module(f"transformer_lab.layers.{module}"), name)


@dataclass(frozen=True)
class MixerConfig:
    """Which mixer a block has, and its sizes; settings of other mixers are ignored."""

    kind: str = "attention"  # attention, linear, retention, gated, s4d, mamba, mamba2 or rwkv
    feature_map: str = "elu"  # linear: elu + 1, relu, exponential or the softmax's Taylor series
    value_dim: int = 0  # linear, retention, gated: a head's value entries; 0: as head_dim
    gate_rank: int = 16  # gated: the width between the input and its decays
    inner_width: int = 1024  # channels of mamba, mamba2 and rwkv
    state: int = 16  # N, the numbers that a channel (mamba2: a head's entry) keeps
    convolution: int = 4  # steps that the first convolution of mamba and mamba2 sees
    activation: str = "silu"  # after that convolution
    step_rank: int = 32  # mamba: the width between the input and its step sizes
    state_heads: int = 16  # mamba2: its heads, of inner_width / state_heads channels each
    state_groups: int = 1  # mamba2: heads of a group share keys and queries
    inner_norms: bool = False  # mamba: RMSNorm of step, input and output (Jamba, Lieber 2024)
    bias: bool = False  # mamba, mamba2: whether their projections have biases
    convolution_bias: bool = True  # the convolution adds a bias
    step_low: float = 0.0  # mamba2: step sizes are clipped to low .. high; high = 0: no upper bound
    step_high: float = 0.0  # 0: sigmoid(x) alone
    step_min: float = 1e-3  # the smallest and the largest initial step size
    step_max: float = 0.1  # greatest first step
    norm_epsilon: float = 1e-5  # epsilon of the norms inside of a mixer
    way: str = "auto"  # how the recurrence is computed: steps, associative, chunks (see `ops.scan`)
    chunk: int = 64  # positions computed at once as products

    def __post_init__(self):
        choices = {"kind": KINDS, "feature_map": MAPS, "way": ("auto", *WAYS)}
        chosen(self, "model.mixer", choices | {"activation": tuple(ACTIVATIONS)})
        sizes = "inner_width", "state", "convolution", "step_rank", "state_heads", "state_groups"
        at_least(self, "model.mixer", 1, *sizes, "gate_rank", "chunk")
        at_least(self, "model.mixer", 0, "value_dim")
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


ROUTINGS = ("tokens", "experts")
EXPERT_WAYS = ("auto", "places", "sorted")


@dataclass(frozen=True)
class ExpertsConfig:
    """How many experts a feed-forward has, and how tokens are sent to them.

    Switch (Fedus 2021): top_k = 1, renormalize = False, capacity_factor = 1.25. GShard (Lepikhin
    2020): top_k = 2, capacity_factor = 2. Mixtral (Jiang 2024): top_k = 2, nothing dropped.
    DeepSeekMoE (Dai 2024): narrow experts, some of them shared. Expert choice (Zhou 2022): routing
    = "experts".
    """

    count: int = 8  # E
    width: int = 0  # F, hidden units of an expert; 0: feed_forward_width
    activation: str = ""  # an expert's; empty: the stack's (GLaM has another there)
    top_k: int = 2  # K, the experts of a token; their mean number if routing = "experts"
    routing: str = "tokens"  # tokens choose experts, or experts choose tokens
    renormalize: bool = True  # the weights of a token's experts sum to 1
    shared: int = 0  # additional experts that work for every token (DeepSeekMoE)
    # An expert's slots for an example, as a multiple of an even share of its tokens; 0: no limit
    capacity_factor: float = 0.0
    capacity: int = 0  # the slots as a number; 0: by the factor
    jitter: float = 0.0  # in training the router's input is multiplied by 1 +- this (Fedus 2021)
    router_bias: bool = False  # the router's product adds a bias
    balance_loss: float = 0.01  # coefficients of the losses beside the task's (see `ops.experts`)
    z_loss: float = 0.001  # coefficient of the router's mean squared logsumexp (Zoph 2022, eq. 5)
    # LIMoE (Mustafa 2022, eq. 2-3) wants a token's distribution sharp, and the mean of all tokens
    # of a modality spread: coefficients of both losses, and the mean's entropy that is enough
    local_entropy: float = 0.0
    global_entropy: float = 0.0  # coefficient of minus the entropy of the mean choice (LIMoE)
    enough_entropy: float = 0.0  # nats
    label: str = ""  # a prefix of the reported names, such as image_ and text_ in two towers
    way: str = "auto"  # places: einsum over an expert's slots; sorted: tokens sorted by expert

    def __post_init__(self):
        names = {"routing": ROUTINGS, "way": EXPERT_WAYS}
        chosen(self, "model.experts", names | {"activation": ("", *ACTIVATIONS, *GATED)})
        if self.count < 1 or not 1 <= self.top_k <= self.count:
            raise LabError(
                f"model.experts.top_k = {self.top_k} must be at least 1, and at most "
                f"model.experts.count = {self.count}"
            )
        at_least(self, "model.experts", 0, "width", "shared", "capacity_factor", "capacity")
        fractions(self, "model.experts", "jitter")
        limited = self.capacity_factor or self.capacity
        if self.routing == "experts" and not limited:
            raise LabError('model.experts.routing = "experts" needs model.experts.capacity_factor')
        if (self.way == "sorted" and self.routing == "experts") or (
            self.way == "places" and not limited
        ):
            raise LabError(
                f'model.experts.way = "{self.way}" does not go with routing = "{self.routing}" and '
                f"capacity_factor = {self.capacity_factor}: leave it at auto"
            )

    def places(self, tokens: int) -> int | None:
        """An expert's slots for an example of so many tokens; None: as many as wanted."""
        if self.capacity:
            return min(self.capacity, tokens)
        if not self.capacity_factor:
            return None
        return capacity_of(tokens, self.count, self.top_k, self.capacity_factor)
