"""Numbers on the device at hand against references: exits with 1 if one is out of its bound.

    python -m benchmarks.device_checks

Each line: the check, the greatest absolute difference, its bound.
"""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import Size, make_batch, model_config
from transformer_lab.models.encoder_decoder import EncoderDecoder
from transformer_lab.ops.kernels import attention
from transformer_lab.ops.losses import token_metrics
from transformer_lab.ops.visibility import Visible

SIZE = Size(2, 128, 4, 256, 500, rows=6, source=18, target=14)
EXACT = 2e-5  # float32 products in full, summed in another order
ROUNDED = 3e-2  # two steps of bfloat16 at outputs below 4
failures = []


def check(name: str, got, want, bound: float) -> None:
    """Compares trees; NaN counts as a failure."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    difference = max(
        float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max()) for a, b in pairs
    )
    good = difference <= bound
    print(f"{'ok  ' if good else 'FAIL'} {name}: {difference:.2e} (bound {bound:.0e})", flush=True)
    if not good:
        failures.append(name)


def reference_attention(query, key, value, mask, cotangent):
    """Softmax attention in float64 and its gradients; a row that may attend to nothing gives 0."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    groups, scale = query.shape[1] // key.shape[1], query.shape[-1] ** -0.5
    key, value = (np.repeat(x, groups, axis=1) for x in (key, value))
    scores = np.einsum("bnth,bnsh->bnts", query, key) * scale
    exponents = np.where(mask, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0.0)
    total = exponents.sum(axis=-1, keepdims=True)
    weights = exponents / np.where(total == 0, 1.0, total)
    out = np.einsum("bnts,bnsh->bnth", weights, value)
    pull = np.einsum("bnth,bnsh->bnts", cotangent, value)
    pull = weights * (pull - (pull * weights).sum(axis=-1, keepdims=True)) * scale
    of_key = np.einsum("bnts,bnth->bnsh", pull, query)
    of_value = np.einsum("bnts,bnth->bnsh", weights, cotangent)
    of_heads = (x.reshape(len(x), -1, groups, *x.shape[2:]).sum(axis=2) for x in (of_key, of_value))
    return out, (np.einsum("bnts,bnsh->bnth", pull, key), *of_heads)


def attention_run(implementation: str, inputs, mask, causal, cotangent):
    """The output, and the gradients of its product with the cotangent."""

    def output(query, key, value):
        seen = Visible(causal=causal, mask=mask)
        return attention(query, key, value, seen, implementation=implementation)

    def total(query, key, value):
        return (output(query, key, value).astype(jnp.float32) * cotangent).sum()

    return jax.jit(output)(*inputs), jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*inputs)


def attention_checks(dtype: str) -> None:
    """Each implementation with a padding mask that has an empty row, causal, and both."""
    rng = np.random.default_rng(0)
    shapes = ((3, 4, 16, 32), (3, 2, 16, 32), (3, 2, 16, 32))  # grouped: 4 heads, 2 for keys
    inputs = [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]
    cotangent = rng.normal(size=shapes[0]).astype(np.float32)
    lengths = np.array([16, 9, 0])  # the last row of the batch has no key at all
    padding = (np.arange(16) < lengths[:, None])[:, None, None, :]
    below = np.tril(np.ones((16, 16), bool))
    implementations = ["own", "chunked", "xla"]
    if jax.default_backend() == "gpu" and dtype != "float32":
        implementations.append("cudnn")
    bound = EXACT if dtype == "float32" else ROUNDED
    for case, mask, causal in (
        ("padding", padding, False),
        ("causal", None, True),
        ("padding, causal", padding, True),
    ):
        full = np.broadcast_to(padding if mask is not None else True, (3, 1, 16, 16))
        full = full & below if causal else full
        want, want_gradient = reference_attention(*inputs, full, cotangent)
        mask = None if mask is None else jnp.asarray(mask)
        for implementation in implementations:
            got, gradient = attention_run(implementation, inputs, mask, causal, cotangent)
            name = f"attention {implementation} {dtype}, {case}"
            check(name, got, want, bound)
            check(f"{name}, gradient", gradient, want_gradient, 4 * bound)


def loss_and_gradient(model: EncoderDecoder, params, batch):
    """With dropout, from one key."""

    def loss(params):
        inputs = batch["source"], batch["source_mask"], batch["target"]
        logits = model.apply(params, *inputs, jax.random.key(7))
        total, weight = token_metrics(logits, batch["target"], batch["target_mask"], 0.1)["loss"]
        return total / weight

    return jax.jit(jax.value_and_grad(loss))(params)


def model_checks() -> None:
    """bfloat16 against float32, cached against full decoding, scan and remat against plain."""
    config = model_config(SIZE)
    plain = EncoderDecoder(config)
    batch = make_batch(SIZE)
    batch["source_mask"][1:, 11:] = False  # padding
    batch["source_mask"][5] = False  # a row that fills up a batch
    batch = jax.device_put(batch)
    inputs = batch["source"], batch["source_mask"], batch["target"]
    params = jax.jit(plain.init)(jax.random.key(0), *inputs)
    logits = jax.jit(plain.apply)(params, *inputs)
    rounded = EncoderDecoder(replace(config, dtype="bfloat16"))
    scale = float(jnp.abs(logits).max())
    check(
        f"logits up to {scale:.1f}, bfloat16 against float32",
        jax.jit(rounded.apply)(params, *inputs),
        logits,
        0.03 * scale,
    )
    check(
        "logits, cached against full decoding", cached_logits(plain, params, inputs), logits, 1e-4
    )
    want = loss_and_gradient(plain, params, batch)
    for changes in (
        {"scan_layers": True},
        {"remat": "nothing"},
        {"scan_layers": True, "remat": "nothing"},
    ):
        got = loss_and_gradient(EncoderDecoder(replace(config, **changes)), params, batch)
        check(f"loss and gradient, {' and '.join(changes)} against plain", got, want, EXACT)


def cached_logits(model: EncoderDecoder, params, inputs):
    """The logits of all positions, one `step` each."""
    source, mask, target = inputs
    cache = model.apply(params, source, mask, target.shape[1], method="init_cache")
    step = jax.jit(lambda tokens, cache: model.apply(params, tokens, cache, method="step"))
    steps = []
    for i in range(target.shape[1]):
        logits, cache = step(target[:, i : i + 1], cache)
        steps.append(logits)
    return jnp.concatenate(steps, axis=1)


def main() -> None:
    # Accelerators round the inputs of float32 products unless told otherwise.
    with jax.default_matmul_precision("highest"):
        for dtype in ("float32", "bfloat16"):
            attention_checks(dtype)
        model_checks()
    print(f"{len(failures)} checks failed on {jax.devices()[0].device_kind}", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
