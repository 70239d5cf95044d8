"""The stack against PyTorch's, and its switches against each other."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.errors import LabError
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.stack import Stack
from transformer_lab.ops.visibility import Visible

TORCH = np.load(Path(__file__).parents[1] / "fixtures" / "torch_stacks.npz")


def torch_attention(name):
    weights = np.split(TORCH[f"{name}.in_proj_weight"], 3)
    biases = np.split(TORCH[f"{name}.in_proj_bias"], 3)
    parts = zip(("query", "key", "value"), weights, biases, strict=True)
    tree = {part: {"kernel": w.T, "bias": b} for part, w, b in parts}
    return tree | {"out": torch_linear(f"{name}.out_proj")}


def torch_linear(name):
    return {"kernel": TORCH[f"{name}.weight"].T, "bias": TORCH[f"{name}.bias"]}


def torch_norm(name):
    return {"scale": TORCH[f"{name}.weight"], "bias": TORCH[f"{name}.bias"]}


def torch_params(side, norm_place):
    params = {}
    for i in range(2):
        name = f"weights/{side}.layers.{i}"
        last = "norm3" if side == "decoder" else "norm2"
        params[f"layer_{i}"] = {
            "attention": torch_attention(f"{name}.self_attn"),
            "attention_norm": torch_norm(f"{name}.norm1"),
            "feed_forward": {
                "up": torch_linear(f"{name}.linear1"),
                "down": torch_linear(f"{name}.linear2"),
            },
            "feed_forward_norm": torch_norm(f"{name}.{last}"),
        }
        if side == "decoder":
            params[f"layer_{i}"] |= {
                "cross_attention": torch_attention(f"{name}.multihead_attn"),
                "cross_attention_norm": torch_norm(f"{name}.norm2"),
            }
    if norm_place == "pre":
        params["final_norm"] = torch_norm(f"weights/{side}.norm")
    return {"params": params}


@pytest.mark.parametrize("norm_place", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_and_decoder_equal_pytorch(norm_place, activation):
    config = StackConfig(
        layers=2,
        width=24,
        heads=3,
        head_dim=8,
        feed_forward_width=40,
        activation=activation,
        norm_place=norm_place,
        norm_epsilon=1e-5,
    )
    variant = f"{norm_place}_{activation}"
    source_mask, target_mask = TORCH["source_mask"], TORCH["target_mask"]
    keys = Visible(keys=jnp.asarray(source_mask))
    want, source, target = map(
        jnp.asarray, (TORCH[f"{variant}/encoder_output"], TORCH["source"], TORCH["target"])
    )
    encoder, decoder = Stack(config, 2), Stack(config, 2, causal=True, cross=True)

    @jax.jit
    def both(params):
        first = encoder.apply(params[0], source, keys, mutable="intermediates")
        given = {"memory": want, "memory_seen": keys}
        return *first, decoder.apply(params[1], target, **given)

    sides = [torch_params(side, norm_place) for side in ("encoder", "decoder")]
    memory, captured, out = map(jax.device_get, both(sides))
    np.testing.assert_allclose(memory[source_mask], want[source_mask], atol=1e-5)
    weights = captured["intermediates"]["layer_0"]["attention"]["weights"][0]
    np.testing.assert_allclose(
        np.swapaxes(weights, 1, 2)[source_mask],
        np.swapaxes(TORCH[f"{variant}/encoder_attention0"], 1, 2)[source_mask],
        atol=1e-5,
    )
    want = TORCH[f"{variant}/decoder_output"]
    np.testing.assert_allclose(out[target_mask], want[target_mask], atol=1e-5)


def normal(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


SMALL = {"width": 12, "heads": 4, "head_dim": 5, "feed_forward_width": 20, "dropout": 0.2}
VARIANTS = {
    "post": {"attention_dropout": 0.1, "feed_forward_dropout": 0.3},
    "pre_gated_grouped": {
        "norm_place": "pre",
        "activation": "swiglu",
        "kv_heads": 2,
        "drop_path": 0.5,
    },  # fmt: skip
    "parallel_rms": {"norm_place": "pre", "block": "parallel", "norm": "rms_norm", "kv_heads": 1},
}


@pytest.mark.each_run("parallel_rms")
@pytest.mark.parametrize("variant", VARIANTS)
def test_scan_and_remat_change_neither_start_nor_loss_nor_gradient(variant):
    x, memory = (normal(2, 5 + n, 12) for n in (1, 2))
    inputs = {"memory": memory, "memory_seen": Visible(keys=jnp.arange(7) < jnp.array([[7], [4]]))}

    @jax.jit
    def computed():
        found = []
        for scan, remat in ((False, "off"), (True, "off"), (False, "nothing"), (True, "nothing")):
            switches = {"scan_layers": scan, "remat": remat}
            config = StackConfig(**SMALL, **VARIANTS[variant], **switches)
            stack = Stack(config, 2, causal=True, cross=True)
            params = stack.init(jax.random.key(0), x, **inputs)

            def loss(params, stack=stack):
                out = stack.apply(params, x, **inputs, dropout_key=jax.random.key(3))
                return (out * jnp.arange(12.0)).sum() / 100

            found.append((params, *jax.value_and_grad(loss)(params)))
        return found

    plain, *others = computed()
    for params, value, gradient in others:
        jax.tree.map(np.testing.assert_array_equal, params, plain[0])
        np.testing.assert_allclose(value, plain[1], rtol=1e-5)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4), gradient, plain[2]
        )


def test_what_a_block_keeps_decides_which_products_are_made_again():
    """Products in a traced step of a stack, forward, backward and made again."""
    x = normal(2, 64, 12)

    def products(remat):
        config = StackConfig(**{**SMALL, "dropout": 0.0}, scan_layers=True, remat=remat)
        stack = Stack(config, 3)
        params = draw(stack, x)
        loss = lambda params: stack.apply(params, x).sum()  # noqa: E731
        run = jax.jit(jax.grad(loss)).trace(params)
        text = str(run.jaxpr)
        return text.count("dot_general"), run.lower().compile()(params), text

    kept, whole, _ = products("off")
    for remat, most in (("nothing", False), ("dots", True), ("offload", True)):
        count, gradient, text = products(remat)
        # Of the two products that are left to make again, both are attention's own.
        assert (count <= kept + 2) == most and (count > kept)
        assert ("<host>" in text) == (remat == "offload")
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), gradient, whole)


def test_dropout_differs_between_layers_sites_and_keys():
    config = StackConfig(**{**SMALL, "dropout": 0.5, "norm": "none", "norm_place": "pre"})
    stack = Stack(config, 2)
    x = jnp.zeros((1, 4, 12))
    # Sub-layers that put out ones show their dropout mask in what they add.
    ones = jax.tree.map(np.zeros_like, draw(stack, x))
    for layer in ones["params"].values():
        layer["attention"]["out"]["bias"] += 1.0
        layer["feed_forward"]["down"]["bias"] += 16.0
    ones["params"]["layer_1"] = jax.tree.map(lambda b: 4 * b, ones["params"]["layer_1"])
    run = jax.jit(lambda key: stack.apply(jax.tree.map(jnp.asarray, ones), x, dropout_key=key))
    out = run(jax.random.key(1))
    parts = (np.asarray(out).astype(int) // 2)[..., None] >> np.array([0, 2, 4, 6]) & 1
    masks = parts.reshape(-1, 4).T
    assert (masks.mean(axis=1) > 0.2).all() and (masks.mean(axis=1) < 0.8).all()
    assert len({tuple(mask) for mask in masks}) == 4
    assert (run(jax.random.key(2)) != out).any()


def test_dropped_paths_grow_from_none_in_the_first_layer_to_the_rate_in_the_last():
    switches = {"norm": "none", "norm_place": "pre", "dropout": 0.0, "drop_path": 0.5}
    stack = Stack(StackConfig(**{**SMALL, **switches}), 3)
    x = np.zeros((400, 1, 12), np.float32)
    params = jax.tree.map(np.zeros_like, draw(stack, x))
    for i, layer in enumerate(params["params"].values()):
        layer["attention"]["out"]["bias"] += 10.0**i
    run = jax.jit(partial(stack.apply, dropout_key=jax.random.key(1)))
    out = np.asarray(run(params, x))[:, 0, 0]
    second, third = 10 / 0.75, 100 / 0.5
    kept = np.rint((out - 1) // third), np.rint((out - 1) % third / second)
    np.testing.assert_allclose(out, 1 + third * kept[0] + second * kept[1], rtol=1e-5)
    assert abs(kept[0].mean() - 0.5) < 0.1 and abs(kept[1].mean() - 0.75) < 0.1


@pytest.mark.parametrize("switches", [{}, {"block": "parallel"}, {"norm_place": "post"}])
def test_without_residuals_nothing_passes_sublayers_that_give_nothing(switches):
    x = normal(2, 3, 12)
    sizes = SMALL | {"norm": "none", "norm_place": "pre"} | switches
    for residual in (True, False):
        stack = Stack(StackConfig(**sizes, residual=residual), 2)
        params = jax.tree.map(np.array, draw(stack, x))
        for layer in params["params"].values():
            for part in (layer["attention"]["out"], layer["feed_forward"]["down"]):
                part["kernel"] *= 0
                part["bias"] *= 0
        np.testing.assert_array_equal(jax.jit(stack.apply)(params, x), x * residual)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("activation", "swigul", 'did you mean "swiglu"'),
        ("norm", "layernorm", 'did you mean "layer_norm"'),
        ("kv_heads", 3, "multiple"),
        ("dropout", 1.0, r"\[0, 1\)"),
        ("block", "parallel", "norm_place"),
        ("width", 0, "at least 1"),
    ],
)
def test_impossible_settings_are_refused_with_their_key(field, value, words):
    with pytest.raises(LabError, match=words) as info:
        StackConfig(**{field: value})
    assert f"model.{field}" in str(info.value) and "\n" not in str(info.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rope_base": -1e4},
        {"rope_base": 1.0},  # every pair would turn alike, and YaRN would divide by its logarithm
        {"rope_factor": 0.0},
        {"rope_factor": float("nan")},
        {"rope_original_length": 0},
        {"rope_attention_factor": float("inf")},
        {"rope_low": 4.0, "rope_scaling": "llama3"},
        {"rope_low": 5.0, "rope_scaling": "yarn"},
    ],
)
def test_frequencies_that_are_no_numbers_are_refused_with_their_key(wrong):
    key, value = next(iter(wrong.items()))
    with pytest.raises(LabError, match=rf"^model.{key} = {value} must be "):
        StackConfig(positions="rope", **wrong)
    StackConfig(**wrong)  # without RoPE they are not read


def test_layer_norm_keeps_its_digits_on_small_and_shifted_inputs():
    from transformer_lab.layers.basic import norm

    rng = np.random.default_rng(0)
    for epsilon, shift in ((1e-5, 0.0), (1e-12, 0.0), (1e-6, 3.0)):
        x = rng.normal(size=(4, 32)) * 1e-3 + shift
        x = x.astype(np.float32).astype(np.float64)
        want = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
        layer = norm(StackConfig(norm_epsilon=epsilon))
        got, _ = layer.init_with_output(jax.random.key(0), jnp.asarray(x, jnp.float32))
        np.testing.assert_allclose(got, want, atol=2e-3 if shift else 1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scan", [False, True])
def test_a_window_by_blocks_is_that_of_the_mask_and_captures_its_weights(causal, scan):
    config = StackConfig(
        layers=2, width=12, heads=2, kv_heads=1, head_dim=6, feed_forward_width=20, max_length=9,
        positions="rope", window=3, dropout=0.0, scan_layers=scan,
    )  # fmt: skip
    x, mask = normal(2, 9, 12), Visible(keys=jnp.arange(9) < jnp.array([[9], [5]]))
    stack = Stack(config, 2, causal=causal)
    masked = Stack(replace(config, attention_implementation="xla"), 2, causal=causal)

    @jax.jit
    def run(params):
        captured = stack.apply(params, x, mask, mutable=["intermediates"])
        return masked.apply(params, x, mask), stack.apply(params, x, mask), captured

    want, found, (out, captured) = run(draw(stack, x))
    np.testing.assert_allclose(found, want, atol=1e-5)
    np.testing.assert_allclose(out, want, atol=1e-5)
    weights = np.asarray(jax.tree.leaves(captured)[0])
    assert weights.shape == (2, 2, 9, 9) and not weights[:, :, 8, :6].any()
