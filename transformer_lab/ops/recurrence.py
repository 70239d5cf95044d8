"""Recurrent cells as pure functions, and the one scan over time that runs them all.

Letters: B batch, T time, H units, G = H times the cell's blocks. A step takes `x` [B, G], the
products of its input with all kernels, biases included: those of all times are one matrix product
before the scan. A state is a tuple of [B, H]; its first array is the output. States are float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_lab.errors import LabError, nearest
from transformer_lab.ops.activations import ACTIVATIONS

State = tuple[Float[Array, "b h"], ...]
Weights = dict[str, Array]  # kernel [H, G]; gru, reset after: bias [H]; peepholes: peephole [3, H]


@dataclass(frozen=True)
class Cell:
    """Which recurrence, and what differs between its sources."""

    kind: str = "lstm"  # elman | gated | gru | lstm | lstm_peephole
    activation: str = "tanh"  # of elman
    # gru: before the recurrent product (Cho 2014, eq. 8; Bahdanau 2015) or after it (PyTorch)
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
            value = getattr(self, name)
            if value not in valid:
                key = "cell" if name == "kind" else name
                raise LabError(f'model.{key} = "{value}" is unknown{nearest(value, valid)}')

    @property
    def blocks(self) -> int:
        """Products of H columns each that a step adds up: of gates, then of the new value."""
        return BLOCKS[self.kind]

    @property
    def parts(self) -> int:
        """Arrays of a state."""
        return 2 if self.kind.startswith("lstm") else 1


def step(cell: Cell, weights: Weights, x: Float[Array, "b g"], state: State) -> State:
    """The state after one more input."""
    return _STEPS[cell.kind](cell, weights, x, state, _Times(weights["kernel"]))


class _Times:
    """Products of states with the recurrent kernel's columns, in its type, summed in float32.

    `taps` [B, G] are added to them: zeros, whose gradient is that of the products. `inputs` keeps
    what was multiplied. The two make the kernel's gradient after the scan, see `_gradient`.
    """

    def __init__(self, kernel: Array, taps: Array | None = None):
        self.kernel, self.taps, self.inputs = kernel, taps, []

    def __call__(self, h: Array, columns: slice = slice(None)) -> Array:
        low, kernel = h.astype(self.kernel.dtype), self.kernel[:, columns]
        self.inputs.append(low)
        product = jnp.dot(low, kernel, preferred_element_type=jnp.float32)
        return product if self.taps is None else product + self.taps[:, columns]


def _elman(cell: Cell, weights: Weights, x: Array, state: State, times: _Times) -> State:
    """h = act(W x + U h) (Elman 1990)."""
    return (ACTIVATIONS[cell.activation](x + times(state[0])),)


def _gated(cell: Cell, weights: Weights, x: Array, state: State, times: _Times) -> State:
    """h = f h + (1 - f) tanh(W x + U h): one forget gate (van der Westhuizen 2018, JANET)."""
    (h,) = state
    forget, new = jnp.split(x + times(h), 2, axis=-1)
    forget = jax.nn.sigmoid(forget)
    return (forget * h + (1 - forget) * jnp.tanh(new),)


def _gru(cell: Cell, weights: Weights, x: Array, state: State, times: _Times) -> State:
    """Blocks: reset, update, new (Cho 2014)."""
    (h,) = state
    gates, new = slice(0, 2 * h.shape[-1]), slice(2 * h.shape[-1], None)
    after = cell.reset == "after"
    products = times(h) if after else times(h, gates)
    reset, update = jnp.split(jax.nn.sigmoid(x[:, gates] + products[:, gates]), 2, axis=-1)
    inner = reset * (products[:, new] + weights["bias"]) if after else times(reset * h, new)
    keep = update if cell.gate_keeps else 1 - update
    return (keep * h + (1 - keep) * jnp.tanh(x[:, new] + inner),)


def _lstm(cell: Cell, weights: Weights, x: Array, state: State, times: _Times) -> State:
    """Blocks: input, forget, new, output (Gers 2000).

    Peepholes are diagonal, and the output gate's sees the new cell (Graves 2013, eq. 7-11).
    """
    h, c = state
    gate, forget, new, output = jnp.split(x + times(h), 4, axis=-1)
    peephole = weights.get("peephole")
    if peephole is not None:
        gate, forget = gate + peephole[0] * c, forget + peephole[1] * c
    c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(gate) * jnp.tanh(new)
    if peephole is not None:
        output = output + peephole[2] * c
    return jax.nn.sigmoid(output) * jnp.tanh(c), c


BLOCKS = {"elman": 1, "gated": 2, "gru": 3, "lstm": 4, "lstm_peephole": 4}
_STEPS: dict[str, Callable[..., State]] = {
    "elman": _elman,
    "gated": _gated,
    "gru": _gru,
    "lstm": _lstm,
    "lstm_peephole": _lstm,
}


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
    """The output after each input, and the last state; time comes first in the long arrays.

    Where the mask is False the state is carried through and the input never read, so the last state
    is that of the last real input, on whichever side the padding is, and a reversed scan begins at
    each row's own end. Where `fresh` is True the state starts from zeros. No gradient flows from a
    step whose number is a multiple of `truncate` to the one before (Williams 1990).
    """
    if truncate and reverse:
        raise LabError("model.truncate is for one direction: unset model.bidirectional")
    return _scan(cell, truncate, reverse, weights, x, state, mask, fresh)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _scan(cell, truncate, reverse, weights, x, state, mask, fresh):
    outputs, state, _ = _loop(cell, truncate, reverse, weights, None, x, state, mask, fresh)
    return outputs, state


def _loop(cell, truncate, reverse, weights, taps, x, state, mask, fresh):
    """`scan`, and what each step multiplied with the recurrent kernel."""
    numbers = jnp.arange(x.shape[0])
    cut = numbers % truncate == 0 if truncate else None
    flags = [None if m is None else m.T[:, :, None] for m in (mask, fresh)]

    def body(state, xs):
        x, taps, real, begins, cut = xs
        if cut is not None:
            state = jax.tree.map(lambda s: jnp.where(cut, jax.lax.stop_gradient(s), s), state)
        if begins is not None:
            state = jax.tree.map(lambda s: jnp.where(begins, 0.0, s), state)
        times = _Times(weights["kernel"], taps)
        new = _STEPS[cell.kind](cell, weights, x, state, times)
        if real is not None:
            new = jax.tree.map(partial(jnp.where, real), new, state)
        return new, (new[0], None if taps is None else times.inputs)

    state, (outputs, inputs) = jax.lax.scan(body, state, (x, taps, *flags, cut), reverse=reverse)
    return outputs, state, inputs


def _forward(cell, truncate, reverse, weights, x, state, mask, fresh):
    def run(weights, taps, x, state):
        weights = {**weights, "kernel": jax.lax.stop_gradient(weights["kernel"])}
        outputs, state, inputs = _loop(
            cell, truncate, reverse, weights, taps, x, state, mask, fresh
        )
        return (outputs, state), inputs

    taps = jnp.zeros(x.shape)
    found, pull, inputs = jax.vjp(run, weights, taps, x, state, has_aux=True)
    return found, (pull, inputs)


def _gradient(cell, truncate, reverse, kept, gradient):
    """The kernel's part is one product over all times; in the loop it would be one a step."""
    pull, inputs = kept
    weights, taps, x, state = pull(gradient)
    ends = [2 * inputs[0].shape[-1]] * (len(inputs) - 1)  # gru, reset before: gates, then new
    parts = [
        jnp.einsum("tbh,tbg->hg", h, part.astype(h.dtype), preferred_element_type=jnp.float32)
        for h, part in zip(inputs, jnp.split(taps, ends, axis=-1), strict=True)
    ]
    weights = {**weights, "kernel": jnp.concatenate(parts, axis=1).astype(inputs[0].dtype)}
    return weights, x, state, None, None


_scan.defvjp(_forward, _gradient)


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
    largest = jnp.maximum(jnp.abs(rows).max(axis=(0, 1, 3)), jnp.finfo(jnp.float32).tiny)
    # A square of 1e-30 would be 0.
    return largest * jnp.sqrt(jnp.square(rows / largest[:, None]).sum(axis=-1).mean(axis=(0, 1)))
