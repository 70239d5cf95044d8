"""The base of what may replace attention in a block: linear attention and state spaces.

Each mixes the positions of a sequence at a cost for each position that does not depend on the
length, and carries a state of constant size. One call serves training, the first pass over a prompt
and each new position: it takes the state before the first of T positions (None: they are the first)
and returns the state after the last, so that any cut of a sequence into calls gives the same
numbers.
    real   bool [B, T], False where a position is padding, which leaves every state as it is
    fresh  bool [B, T], True where a document of a packed sequence begins, with an empty state
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_lab.layers.basic import dense
from transformer_lab.ops.scan import recurrence
from transformer_lab.ops.visibility import Visible


class Flow(NamedTuple):
    """Which positions are real, which begin a document, and their indices; None if not needed."""

    real: Bool[Array, "b t"] | None = None
    fresh: Bool[Array, "b t"] | None = None
    positions: Int[Array, "t"] | None = None

    @classmethod
    def of(cls, seen: Visible, positions: Int[Array, "t"] | None, start: Any = None) -> "Flow":
        """The flow that fits an attention mask's segments or real keys, or first real positions."""
        segments, real, fresh = seen.query_segments, seen.keys, None
        if segments is not None:
            before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
            real, fresh = segments != 0, segments != before
        if start is not None:
            real = positions >= start[:, None]
        return cls(real, fresh, positions)

    def hide(self, x: Array, value: float = 0.0) -> Array:
        """x [B, T, ...] with `value` at the positions that are padding."""
        if self.real is None:
            return x
        return jnp.where(self.real.reshape(self.real.shape + (1,) * (x.ndim - 2)), x, value)


NOTHING = Flow()  # all positions are real and belong to one document


class Mixer(nn.Module):
    """The base class of mixers: a stack's config, and the recurrence in the configured way.

    Each kind says beside its computation what it costs, by a stack's config alone, and which
    settings its outputs depend on.
    """

    config: Any  # a StackConfig

    SETTINGS = ()  # the names of those settings of `MixerConfig`
    HEADED = False  # whether the stack's heads and their width are among its sizes

    @classmethod
    def weights(cls, cfg: Any) -> int:
        """Entries of the matrices that multiply one token's vector."""
        raise NotImplementedError

    @classmethod
    def numbers(cls, cfg: Any) -> int:
        """Numbers of the state that is carried from token to token, in decoding as float32."""
        raise NotImplementedError

    def scan(self, query, key, value, log_decay, state, flow, auto="chunks", chunk=0, poles=None):
        """The recurrence of `ops.scan`, computed in the way `auto` where the config leaves it open.

        By what `benchmarks.mixers` measured on two CPU cores (docs/benchmarks.md; values and
        gradients, 128 to 2,048 steps): chunks suit heads of many values, at 0.14 to 0.74 of the
        steps' time; steps suit Mamba, S4D and RWKV, whose heads have one value or one key: an
        associative scan takes 1.4 to 6 times as long there, with all states in memory.
        """
        mixer = self.config.mixer
        way = auto if mixer.way == "auto" else mixer.way
        # For a single position, as in decoding, one step is the least work.
        if key.shape[1] == 1:
            way = "steps"
        size = chunk or mixer.chunk
        log_decay = flow.hide(jnp.broadcast_to(log_decay, (len(key), *log_decay.shape[1:])))
        key = flow.hide(key)
        inputs = query, key, value, log_decay, state, flow.fresh, poles
        return recurrence(*inputs, way=way, chunk=size)

    def project(self, width: int, name: str, role: str = "", bias: bool = False) -> nn.Module:
        """A dense layer with the stack's initialization and type."""
        return dense(self.config, width, bias, role, name)


def shifted(
    x: Float[Array, "b t d"], before: Float[Array, "b d"] | None, flow: Flow
) -> tuple[Float[Array, "b t d"], Float[Array, "b d"]]:
    """Each position's predecessor (zeros for a document's first), and the last real input."""
    first = jnp.zeros_like(x[:, 0]) if before is None else before.astype(x.dtype)
    x = flow.hide(x)
    past = jnp.concatenate([first[:, None], x[:, :-1]], axis=1)
    if flow.fresh is not None:
        past = jnp.where(flow.fresh[..., None], 0, past)
    return past, x[:, -1]


class ShiftedFeedForward(nn.Module):
    """The channel mixing of RWKV-4 (Peng 2023, eq. 19-21): a gated feed-forward of each position
    and the one before it."""

    config: Any  # a StackConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], flow: Flow = NOTHING, state: Any = None):
        cfg, d = self.config, x.shape[-1]
        past, state = shifted(x, state, flow)
        mixes = {
            name: self.param(f"{name}_mix", nn.initializers.constant(0.5), (d,))
            for name in ("key", "receptance")
        }
        key, gate = ((x * m + past * (1 - m)).astype(x.dtype) for m in mixes.values())
        hidden = dense(cfg, cfg.feed_forward_width, False, "up", "key")(key)
        hidden = jnp.square(jnp.maximum(hidden, 0))
        out = dense(cfg, cfg.width, False, "down", "value")(hidden)
        return nn.sigmoid(dense(cfg, cfg.width, False, name="receptance")(gate)) * out, state
