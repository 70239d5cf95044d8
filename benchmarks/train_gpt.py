"""A GPT's training step beside a matrix product's speed and beside PyTorch's."""

import importlib.util
import statistics
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import torch_gpt
from benchmarks.common import interleave, matmul_turn, paired, report
from transformer_lab.models.decoder import DecoderConfig, build, training_flops
from transformer_lab.ops.losses import token_metrics

GPT_12M = DecoderConfig(
    layers=6, width=384, heads=6, head_dim=64, feed_forward_width=1536, vocab_size=4000,
    max_length=128, dropout=0.0,
)  # fmt: skip
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bfloat16, by their data sheets


def read_config(path: str) -> tuple[DecoderConfig, int, int]:
    """Model, rows and length of a config file."""
    from transformer_lab.training.config import resolve

    spec = importlib.util.spec_from_file_location("config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    resolved = resolve(module.get_config())
    size = resolved.model.vocab_size or resolved.sections["tokenizer"].vocab_size
    model = replace(resolved.model, vocab_size=size)
    return model, resolved.sections["batch"].rows, resolved.sections["batch"].length


class SyntheticText:
    """The language model's loss on one batch of random tokens."""

    def __init__(self, config: DecoderConfig, rows: int, length: int):
        self.model = build(config)
        ids = np.random.default_rng(0).integers(0, config.vocab_size, (rows, length + 1))
        self.host = {"tokens": ids[:, :-1].astype(np.int32), "targets": ids[:, 1:].astype(np.int32)}

    def init(self, key):
        return self.model.init(key, jnp.zeros((1, 4), jnp.int32))["params"]

    def loss(self, params, batch, dropout_key):
        inputs, targets = batch["tokens"], batch["targets"]
        scores = self.model.apply({"params": params}, inputs, dropout_key, labels=targets)
        return {"loss": token_metrics(scores, targets, targets >= 0)["loss"]}


def compare(name: str, our_step, config, rows, length, rounds, steps, append) -> None:
    """Prints tokens/s, model FLOPs utilisation, and the ratio to PyTorch where it is installed."""
    flops = training_flops(config, length) * rows * length
    product, product_flops = matmul_turn(config.dtype)
    turns = {"ours": our_step(SyntheticText(config, rows, length), steps), "product": product}
    if torch_turn := torch_gpt.make_turn(config, rows, length, steps):
        turns["torch"] = torch_turn
    seconds = interleave(turns, rounds)
    ours = statistics.median(seconds["ours"]) / steps
    speed = product_flops / statistics.median(seconds["product"])
    share = paired(seconds["product"], seconds["ours"]) * flops * steps / product_flops
    result = (
        f"{rows * length / ours:,.0f} tokens/s, {1e3 * ours:.1f} ms a step; {100 * share:.0f} % of "
        f"a matrix product's {speed / 1e12:,.2f} TFLOP/s"
    )
    kind = jax.devices()[0].device_kind
    if peak := next((p for card, p in PEAKS.items() if card in kind), None):
        result += f", {100 * flops / ours / peak:.0f} % of the card's {peak / 1e12:.0f}"
    if torch_turn:
        theirs = statistics.median(seconds["torch"]) / steps
        ratio = paired(seconds["torch"], seconds["ours"])
        result += f"; PyTorch {1e3 * theirs:.1f} ms: {ratio:.2f} times its speed"
    report(f"train_step {name}", result, append)
