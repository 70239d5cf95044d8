"""Stacked recurrent layers, in one direction or both."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_lab.errors import LabError, at_least, chosen, fractions
from transformer_lab.ops.dropout import dropout
from transformer_lab.ops.products import product
from transformer_lab.ops.recurrence import Cell, State, scan, zero_state

INITS = ("orthogonal", "xavier_uniform", "identity")
States = list[list[State]]  # a state for each layer and each of its directions


@dataclass(frozen=True)
class RecurrentConfig:
    """Settings of a stack of recurrent layers; all sizes are explicit."""

    cell: str = "lstm"  # elman | gated | gru | lstm | lstm_peephole
    layers: int = 1  # recurrent layers
    width: int = 256  # H, units of each direction
    bidirectional: bool = False  # states of both directions side by side (Schuster 1997)
    activation: str = "tanh"  # elman: tanh | relu | sigmoid
    reset: str = "after"  # gru: before or after the recurrent product
    gate_keeps: bool = True  # gru: an update gate of 1 keeps the old state
    forget_bias: float = 1.0  # lstm, gated: its initial value (Jozefowicz 2015)
    recurrent_init: str = "orthogonal"  # for each block (Saxe 2014); identity: Le 2015, with relu
    residual: bool = False  # a layer's input is added to its output, where they are as wide
    dropout: float = 0.0  # between layers, on embeddings and before the head (Zaremba 2014)
    truncate: int = 0  # gradients stop at multiples of so many steps; 0: at the start alone
    dtype: str = "float32"  # the type of the products; states are float32

    def __post_init__(self):
        at_least(self, "model", 1, "layers", "width")
        at_least(self, "model", 0, "truncate")
        fractions(self, "model", "dropout")
        chosen(self, "model", {"recurrent_init": INITS, "dtype": ("float32", "bfloat16")})
        if self.truncate and self.bidirectional:
            raise LabError("model.truncate is for one direction: unset model.bidirectional")
        _ = self.recurrence  # refuses unknown names

    @property
    def recurrence(self) -> Cell:
        return Cell(self.cell, self.activation, self.reset, self.gate_keeps)

    @property
    def directions(self) -> tuple[str, ...]:
        return ("forward", "backward")[: 1 + self.bidirectional]

    @property
    def out_width(self) -> int:
        """The width of a layer's output: H, or 2 H for both directions."""
        return self.width * len(self.directions)

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)


class Recurrence(nn.Module):
    """One recurrent layer that runs over time in one direction."""

    config: RecurrentConfig
    features: int  # of the input
    reverse: bool = False

    def setup(self):
        cfg, cell = self.config, self.config.recurrence
        inner = {
            "orthogonal": nn.initializers.orthogonal(),
            "xavier_uniform": nn.initializers.xavier_uniform(),
            "identity": lambda key, shape: jnp.eye(*shape),
        }[cfg.recurrent_init]
        each = lambda init: _blocks(init, cell.blocks)  # noqa: E731
        xavier = nn.initializers.xavier_uniform()
        self.input_kernel = self.param("input_kernel", each(xavier), (self.features, cfg.width))
        self.recurrent_kernel = self.param("recurrent_kernel", each(inner), (cfg.width,) * 2)
        self.bias = self.param("bias", self._first_bias)
        zeros = nn.initializers.zeros
        if cfg.cell == "gru" and cfg.reset == "after":
            self.recurrent_bias = self.param("recurrent_bias", zeros, (cfg.width,))
        if cfg.cell == "lstm_peephole":
            self.peephole_scale = self.param("peephole_scale", zeros, (3, cfg.width))

    def _first_bias(self, key):
        cfg = self.config
        forget = {"gated": 0, "lstm": 1, "lstm_peephole": 1}.get(cfg.cell)
        bias = jnp.zeros((cfg.recurrence.blocks, cfg.width))
        return (bias if forget is None else bias.at[forget].set(cfg.forget_bias)).reshape(-1)

    def __call__(
        self,
        x: Float[Array, "b t f"],
        mask: Bool[Array, "b t"] | None = None,
        state: State | None = None,
        fresh: Bool[Array, "b t"] | None = None,
    ) -> tuple[Float[Array, "b t h"], State]:
        """The outputs, and the last state; see `ops.recurrence.scan` for mask and fresh."""
        cfg, cell = self.config, self.config.recurrence
        low = lambda x: x.astype(cfg.compute_dtype)  # noqa: E731
        by_time = jnp.swapaxes(low(x), 0, 1)  # while x is small
        products = product(by_time, low(self.input_kernel), None, jnp.dtype(jnp.float32))
        products = products + self.bias
        weights = {"kernel": low(self.recurrent_kernel)}
        if cfg.cell == "gru" and cfg.reset == "after":
            weights["bias"] = self.recurrent_bias
        if cfg.cell == "lstm_peephole":
            weights["peephole"] = self.peephole_scale
        state = zero_state(cell, x.shape[0], cfg.width) if state is None else state
        options = {"fresh": fresh, "truncate": cfg.truncate, "reverse": self.reverse}
        out, state = scan(cell, weights, products, state, mask, **options)
        return jnp.swapaxes(out, 0, 1), state


class Layer(nn.Module):
    """One direction, or both side by side; the backward one starts at each text's own end."""

    config: RecurrentConfig
    features: int

    def setup(self):
        for name in self.config.directions:
            setattr(self, name, Recurrence(self.config, self.features, reverse=name == "backward"))

    def __call__(self, x, mask=None, states=None, fresh=None):
        """The outputs [B, T, D], and each direction's last state."""
        found = [
            getattr(self, name)(x, mask, states and states[i], fresh)
            for i, name in enumerate(self.config.directions)
        ]
        outs, states = zip(*found, strict=True)
        return jnp.concatenate(outs, axis=-1), list(states)


class RecurrentStack(nn.Module):
    """Recurrent layers, each of which takes the outputs of the one below."""

    config: RecurrentConfig
    features: int  # of the input

    def setup(self):
        cfg = self.config
        widths = [self.features, *[cfg.out_width] * (cfg.layers - 1)]
        for i, width in enumerate(widths):
            setattr(self, f"layer_{i}", Layer(cfg, width))

    def __call__(
        self,
        x: Float[Array, "b t f"],
        mask: Bool[Array, "b t"] | None = None,
        states: States | None = None,
        fresh: Bool[Array, "b t"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
    ) -> tuple[Float[Array, "b t d"], States]:
        """The top layer's outputs, and the last states, from which a later call continues."""
        cfg, last = self.config, []
        for i in range(cfg.layers):
            if i and dropout_key is not None:
                x = dropout(x, cfg.dropout, jax.random.fold_in(dropout_key, i))
            out, state = getattr(self, f"layer_{i}")(x, mask, states and states[i], fresh)
            last.append(state)
            x = x + out if cfg.residual and x.shape == out.shape else out
        return x, last

    def zero_states(self, rows: int) -> States:
        """The states before the first token, all zeros."""
        cfg = self.config
        zero = zero_state(cfg.recurrence, rows, cfg.width)
        return [[zero for _ in cfg.directions] for _ in range(cfg.layers)]


def _blocks(init, count: int):
    """An initializer that draws the blocks of a kernel one by one, [in, blocks * H]."""

    def draw(key, shape):
        keys = jax.random.split(key, count)
        return jnp.concatenate([init(k, shape) for k in keys], axis=1)

    return draw
