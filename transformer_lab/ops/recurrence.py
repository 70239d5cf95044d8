"""Recurrent cells as pure functions, and the one scan over time that runs them all.

Letters: B batch, T time, H units, G = H times the cell's blocks. A step takes `x` [B, G], the
products of its input with all kernels, biases included: for all times they are one matrix product
before the scan. A state is a tuple of [B, H]; its first array is the output. States are float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_lab.errors import known
from transformer_lab.ops.activations import ACTIVATIONS

State = tuple[Float[Array, "b h"], ...]
Weights = dict[str, Array]  # kernel [H, G]; gru, reset after: bias [H]; peepholes: peephole [3, H]


@dataclass(frozen=True)
class Cell:
    """Which recurrence a layer runs, and the variant where published versions of it differ."""

    kind: str = "lstm"  # elman | gated | gru | lstm | lstm_peephole
    activation: str = "tanh"  # used by elman alone
    # gru: reset before the recurrent product (Cho 2014, eq. 8; Bahdanau 2015) or after (PyTorch)
    reset: str = "after"
    # gru: the update gate's 1 keeps the old state (Cho 2014, eq. 7; PyTorch) or takes the new one
    # (Chung 2014; Bahdanau 2015)
    gate_keeps: bool = True

    def __post_init__(self):
        for name, valid in (
            ("kind", BLOCKS),
            ("activation", ("tanh", "relu", "sigmoid")),
            ("reset", ("before", "after")),
        ):
            known(f"model.{name.replace('kind', 'cell')} = ", getattr(self, name), valid)

    @property
    def blocks(self) -> int:
        """How many blocks of H columns a step's products have: one a gate, then the new value."""
        return BLOCKS[self.kind]

    @property
    def parts(self) -> int:
        """How many arrays [B, H] a state has: two (output, cell) for LSTMs, one for others."""
        return 2 if self.kind.startswith("lstm") else 1


def step(cell: Cell, weights: Weights, x: Float[Array, "b g"], state: State) -> State:
    """The state after one more input x, for any kind of cell."""
    return _STEPS[cell.kind](cell, weights, x, state)


def _elman(cell: Cell, weights: Weights, x: Array, state: State) -> State:
    """The simple recurrent network, h = act(W x + U h) (Elman 1990)."""
    return (ACTIVATIONS[cell.activation](x + _times(state[0], weights["kernel"])),)


def _gated(cell: Cell, weights: Weights, x: Array, state: State) -> State:
    """h = f h + (1 - f) tanh(W x + U h): one forget gate (van der Westhuizen 2018, JANET)."""
    (h,) = state
    forget, new = jnp.split(x + _times(h, weights["kernel"]), 2, axis=-1)
    forget = jax.nn.sigmoid(forget)
    return (forget * h + (1 - forget) * jnp.tanh(new),)


def _gru(cell: Cell, weights: Weights, x: Array, state: State) -> State:
    """The gated recurrent unit (Cho 2014); its blocks are reset gate, update gate, new value."""
    (h,) = state
    two = 2 * h.shape[-1]
    kernel = weights["kernel"]
    if cell.reset == "after":
        products = _times(h, kernel)
        reset, update = jnp.split(jax.nn.sigmoid(x[:, :two] + products[:, :two]), 2, axis=-1)
        inner = reset * (products[:, two:] + weights["bias"])
    else:
        gates = jax.nn.sigmoid(x[:, :two] + _times(h, kernel[:, :two]))
        reset, update = jnp.split(gates, 2, axis=-1)
        inner = _times(reset * h, kernel[:, two:])
    keep = update if cell.gate_keeps else 1 - update
    return (keep * h + (1 - keep) * jnp.tanh(x[:, two:] + inner),)


def _lstm(cell: Cell, weights: Weights, x: Array, state: State) -> State:
    """Long short-term memory; its blocks are input, forget, new value, output (Gers 2000).

    Peepholes are diagonal, and the output gate's sees the new cell (Graves 2013, eq. 7-11).
    """
    return _lstm_with_gates(weights, x, state)[0]


def _lstm_with_gates(weights: Weights, x: Array, state: State) -> tuple[State, Array]:
    """The next state, and the blocks after sigmoid (gates) or tanh (new value), [B, G]."""
    h, c = state
    gate, forget, new, output = jnp.split(x + _times(h, weights["kernel"]), 4, axis=-1)
    peephole = weights.get("peephole")
    if peephole is not None:
        gate, forget = gate + peephole[0] * c, forget + peephole[1] * c
    gate, forget, new = jax.nn.sigmoid(gate), jax.nn.sigmoid(forget), jnp.tanh(new)
    c = forget * c + gate * new
    if peephole is not None:
        output = output + peephole[2] * c
    output = jax.nn.sigmoid(output)
    gates = jnp.concatenate([gate, forget, new, output], axis=-1)
    return (output * jnp.tanh(c), c), gates


BLOCKS = {"elman": 1, "gated": 2, "gru": 3, "lstm": 4, "lstm_peephole": 4}
_STEPS: dict[str, Callable[[Cell, Weights, Array, State], State]] = {
    "elman": _elman,
    "gated": _gated,
    "gru": _gru,
    "lstm": _lstm,
    "lstm_peephole": _lstm,
}


def _times(x: Array, kernel: Array) -> Array:
    """The matrix product in the kernel's type, summed in float32."""
    return jnp.dot(x.astype(kernel.dtype), kernel, preferred_element_type=jnp.float32)


def zero_state(cell: Cell, rows: int, units: int) -> State:
    return (jnp.zeros((rows, units)),) * cell.parts


def scan(
    cell: Cell,
    weights: Weights,
    x: Float[Array, "t b g"],
    state: State,
    mask: Bool[Array, "b t"] | None = None,
    *,
    fresh: Bool[Array, "b t"] | None = None,
    truncate: int = 0,
    reverse: bool = False,
) -> tuple[Float[Array, "t b h"], State]:
    """Runs a cell over time: the output after each input, and the last state; x is [T, B, G].

    Where the mask is False the state is carried through and the input is ignored, so the last state
    is that of the last real input, on whichever side the padding is, and a reversed scan begins at
    each example's own end. Where `fresh` is True the state starts from zeros. No gradient flows
    from a step whose number is a multiple of `truncate` to the one before (Williams 1990). Raises:
    LabError if `truncate` is set for a reversed scan.
    """
    flags = [None if m is None else m.T[:, :, None] for m in (mask, fresh)]
    if cell.kind == "lstm" and fresh is None and not truncate:
        return _lstm_scan(weights["kernel"], x, state, flags[0], reverse)
    times = jnp.arange(x.shape[0])
    cut = times % truncate == 0 if truncate else None

    def body(state, xs):
        x, real, begins, cut = xs
        if cut is not None:
            # Truncated backpropagation: the gradient of earlier steps is cut, the values are not.
            state = jax.tree.map(lambda s: jnp.where(cut, jax.lax.stop_gradient(s), s), state)
        if begins is not None:
            state = jax.tree.map(lambda s: jnp.where(begins, 0.0, s), state)
        new = step(cell, weights, x, state)
        if real is not None:
            new = jax.tree.map(partial(jnp.where, real), new, state)
        return new, new[0]

    state, outputs = jax.lax.scan(body, state, (x, *flags, cut), reverse=reverse)
    return outputs, state


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _lstm_scan(kernel, x, state, real, reverse):
    """`scan` of an LSTM with its gradient written out; `real` is its mask as [T, B, 1] or None.

    It keeps three arrays a step, where differentiating the steps keeps eight, and the kernel's
    gradient is one product over all times.
    """
    return _lstm_forward(kernel, x, state, real, reverse)[0]


def _lstm_forward(kernel, x, state, real, reverse):
    def body(state, xs):
        x, real = xs
        after, gates = _lstm_with_gates({"kernel": kernel}, x, state)
        if real is not None:
            after = jax.tree.map(partial(jnp.where, real), after, state)
        return after, (*after, gates)

    last, (h, c, gates) = jax.lax.scan(body, state, (x, real), reverse=reverse)
    return (h, last), (h, c, gates, state, kernel, real)


def _lstm_backward(reverse, kept, pulled):
    h, c, gates, (h0, c0), kernel, real = kept

    def before(first, all_of_them):
        ends = [all_of_them[1:], first[None]] if reverse else [first[None], all_of_them[:-1]]
        return jnp.concatenate(ends)

    def body(pulled, xs):
        from_out, c, c_before, gates, real = xs
        dh, dc = pulled[0] + from_out, pulled[1]
        through = (0.0, 0.0)  # gradients that pass padding unchanged, as the state does
        if real is not None:
            through = tuple(jnp.where(real, 0.0, d) for d in (dh, dc))
            dh, dc = (jnp.where(real, d, 0.0) for d in (dh, dc))
        gate, forget, new, output = jnp.split(gates, 4, axis=-1)
        squashed = jnp.tanh(c)
        # h = output * tanh(c), c = forget * c_before + gate * new; a sigmoid's slope is s (1 - s)
        dc = dc + dh * output * (1 - squashed**2)
        parts = (
            dc * new * gate * (1 - gate),
            dc * c_before * forget * (1 - forget),
            dc * gate * (1 - new**2),
            dh * squashed * output * (1 - output),
        )
        dx = jnp.concatenate(parts, axis=-1)
        return (_times(dx, kernel.T) + through[0], dc * forget + through[1]), dx

    xs = pulled[0], c, before(c0, c), gates, real
    first, dx = jax.lax.scan(body, pulled[1], xs, reverse=not reverse)
    h, flat = (a.reshape(-1, a.shape[-1]).astype(kernel.dtype) for a in (before(h0, h), dx))
    kernel_pulled = jnp.dot(h.T, flat, preferred_element_type=jnp.float32).astype(kernel.dtype)
    return kernel_pulled, dx, first, None


_lstm_scan.defvjp(_lstm_forward, _lstm_backward)


def gradient_norms(
    outputs: Callable[[Float[Array, "b t d"]], Float[Array, "b t h"]], x: Float[Array, "b t d"]
) -> Float[Array, "t"]:
    """|d y_T / d x_t| for each t: how much of the last output's gradient reaches each input.

    The Frobenius norm of the Jacobian, root mean square over the rows, estimated with 32 random
    directions; it decays or grows with T - t (Bengio 1994; Pascanu 2013, section 2).
    """
    out, pull = jax.vjp(lambda x: outputs(x)[:, -1], x)
    keys = jax.random.split(jax.random.key(0), 32)
    rows = jax.vmap(lambda key: pull(jax.random.normal(key, out.shape))[0])(keys)
    # E |J^T u|^2 = |J|_F^2 for normal u: 32 directions estimate the Jacobian's norm.
    largest = jnp.maximum(jnp.abs(rows).max(axis=(0, 1, 3)), jnp.finfo(jnp.float32).tiny)
    # A square of 1e-30 would be 0.
    return largest * jnp.sqrt(jnp.square(rows / largest[:, None]).sum(axis=-1).mean(axis=(0, 1)))
