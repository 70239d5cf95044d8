"""Weights of PyTorch's nn.RNN, nn.GRU and nn.LSTM in and out of a recurrent stack.

Its kernels are [blocks H, in], its blocks stand in our order (input, forget, new, output; reset,
update, new), and each layer has two biases: one after the input's product, one after the state's.
"""

import numpy as np

from transformer_lab.errors import LabError
from transformer_lab.layers.recurrent import RecurrentConfig

Arrays = dict[str, np.ndarray]
_ENDS = {"forward": "", "backward": "_reverse"}


def from_torch(weights: Arrays, config: RecurrentConfig) -> dict:
    """The parameters of a `RecurrentStack` from a state_dict; its two biases become one."""
    _check(config)
    params: dict = {}
    for i in range(config.layers):
        layer = params[f"layer_{i}"] = {}
        for direction in config.directions:
            end = f"l{i}{_ENDS[direction]}"
            first, second = weights[f"bias_ih_{end}"], weights[f"bias_hh_{end}"].copy()
            own = layer[direction] = {
                "input_kernel": weights[f"weight_ih_{end}"].T,
                "recurrent_kernel": weights[f"weight_hh_{end}"].T,
            }
            if config.cell == "gru":  # the reset gate scales the second bias of the new value
                own["recurrent_bias"] = second[-config.width :].copy()
                second[-config.width :] = 0.0
            own["bias"] = first + second
    return params


def to_torch(params: dict, config: RecurrentConfig) -> Arrays:
    """A state_dict that computes the same; what one bias can hold stands in the input's."""
    _check(config)
    weights = {}
    for i in range(config.layers):
        for direction in config.directions:
            own, end = params[f"layer_{i}"][direction], f"l{i}{_ENDS[direction]}"
            weights[f"weight_ih_{end}"] = np.asarray(own["input_kernel"]).T
            weights[f"weight_hh_{end}"] = np.asarray(own["recurrent_kernel"]).T
            weights[f"bias_ih_{end}"] = np.asarray(own["bias"])
            second = weights[f"bias_hh_{end}"] = np.zeros_like(own["bias"])
            if config.cell == "gru":
                second[-config.width :] = own["recurrent_bias"]
    return weights


def _check(config: RecurrentConfig) -> None:
    known = config.cell in ("elman", "gru", "lstm") and config.activation != "sigmoid"
    if not known or config.residual or (config.reset, config.gate_keeps) != ("after", True):
        raise LabError(
            f'PyTorch has no layer for model.cell = "{config.cell}" with these settings: use '
            "elman, gru (reset = after, gate_keeps = True) or lstm, without model.residual"
        )
