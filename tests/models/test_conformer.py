"""The Conformer: its block against the reference, and what padding and batch mates change."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.errors import LabError
from transformer_lab.layers import costs
from transformer_lab.layers.block import Block
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.stack import Stack
from transformer_lab.layers.told import listened
from transformer_lab.models.conformer import Conformer, ConformerConfig

REFERENCE = np.load(Path(__file__).parents[1] / "fixtures" / "conformer.npz")
BLOCK = StackConfig(
    layers=1, width=12, heads=2, head_dim=6, feed_forward_width=20, activation="silu",
    norm_place="pre", norm_epsilon=1e-5, block="conformer", convolution_width=5,
    positions="transformer_xl", dropout=0.0,
)  # fmt: skip
SMALL = ConformerConfig(
    layers=2, width=12, heads=2, head_dim=6, feed_forward_width=16, convolution_width=3, bins=8,
    channels=3, vocab_size=9, max_length=64, decodes=True, decoder_layers=1, dropout=0.1,
)  # fmt: skip
PLAIN = {"block": "serial", "convolution_width": 0, "positions": "sinusoidal"}
NETS = {
    "conformer": SMALL,
    "layer norms": replace(SMALL, convolution_norm="layer_norm"),
    "transformer": replace(SMALL, **PLAIN),
    "bilstm": replace(SMALL, recurrent_width=5, decodes=False),
    "scanned": replace(SMALL, scan_layers=True),
}


def weight(name):
    return REFERENCE[f"weights/{name}"]


def linear(name):
    return {"kernel": weight(f"{name}.weight").T, "bias": weight(f"{name}.bias")}


def layer_norm(name):
    return {"scale": weight(f"{name}.weight"), "bias": weight(f"{name}.bias")}


def feed_forward(name):
    return {"up": linear(f"{name}.intermediate_dense"), "down": linear(f"{name}.output_dense")}


def test_a_block_is_that_of_the_reference():
    """Its sines and cosines alternate, ours stand in halves; its pointwise layers have no biases,
    and its gate is the second half of one of them."""
    positions = weight("self_attn.linear_pos.weight").T
    order = np.r_[0:12:2, 1:12:2]
    value, gate = np.split(weight("conv_module.pointwise_conv1.weight")[..., 0].T, 2, axis=1)
    norm = "conv_module.batch_norm"
    zero = np.zeros(12, np.float32)
    params = {
        "first_feed_forward_norm": layer_norm("ffn1_layer_norm"),
        "first_feed_forward": feed_forward("ffn1"),
        "attention_norm": layer_norm("self_attn_layer_norm"),
        "attention": {
            **{part: linear(f"self_attn.linear_{part[0]}") for part in ("query", "key", "value")},
            "out": linear("self_attn.linear_out"),
            "position": {"kernel": positions[order]},
            "content_bias": weight("self_attn.pos_bias_u"),
            "position_bias": weight("self_attn.pos_bias_v"),
        },
        "convolution_norm": layer_norm("conv_module.layer_norm"),
        "convolution": {
            "up": {"kernel": value, "bias": zero},
            "gate": {"kernel": gate, "bias": zero},
            "taps": weight("conv_module.depthwise_conv.weight")[:, 0].T,
            "norm": layer_norm(norm),
            "down": {
                "kernel": weight("conv_module.pointwise_conv2.weight")[..., 0].T, "bias": zero,
            },
        },
        "feed_forward_norm": layer_norm("ffn2_layer_norm"),
        "feed_forward": feed_forward("ffn2"),
        "last_norm": layer_norm("final_layer_norm"),
    }  # fmt: skip
    moments = {"mean": weight(f"{norm}.running_mean"), "var": weight(f"{norm}.running_var")}
    statistics = {"layer_0": {"convolution": {"norm": moments}}}
    stack = Stack(BLOCK, 1)
    variables = {"params": {"layer_0": params}, "batch_stats": statistics}
    found = jax.jit(stack.apply)(variables, REFERENCE["input"])
    np.testing.assert_allclose(found, REFERENCE["output"], atol=1e-5)


def parts(config, rows=3, frames=21):
    model = Conformer(config)
    rng = np.random.default_rng(0)
    features = jnp.asarray(rng.normal(size=(rows, frames, config.bins)), jnp.float32)
    target = jnp.asarray(rng.integers(1, 9, (rows, 4)))
    mask = jnp.arange(frames) < jnp.array([[frames], [13], [6]])[:rows]
    variables = draw(model, features, mask)
    stats = variables["params"].get("batch_stats")
    if stats:
        variables["params"]["batch_stats"] = jax.tree.map(jnp.abs, stats)
    return model, variables, features, mask, target if config.decodes else None


@pytest.mark.each_run("conformer", "scanned")
@pytest.mark.parametrize("name", NETS)
def test_batch_mates_and_padding_change_nothing(name):
    """Alone, and with other numbers in longer padding, a recording has the same logits; one whose
    frames are all padding changes no statistic of the batch norms either."""
    model, variables, features, mask, target = parts(NETS[name])

    @jax.jit
    def run(features, mask, target):
        found = model.apply(variables, features, mask, None, target)
        return found["ctc"], found["real"], found.get("attention", 0.0)

    whole = run(features, mask, target)
    assert whole[1].sum(axis=1).tolist() == [6, 4, 2]  # a state for every four frames begun
    noise = jnp.where(mask[..., None], features, 7.0)
    longer = jnp.pad(noise, ((0, 0), (0, 7), (0, 0)), constant_values=-3.0)
    padded = run(longer, jnp.pad(mask, ((0, 0), (0, 7))), target)
    for row, count in enumerate((6, 4, 2)):
        np.testing.assert_allclose(padded[0][row, :count], whole[0][row, :count], atol=2e-5)
    np.testing.assert_allclose(padded[2], whole[2], atol=2e-5)
    alone = run(features[1:2, :13], mask[1:2, :13], None if target is None else target[1:2])
    np.testing.assert_allclose(alone[0][0], whole[0][1, :4], atol=2e-5)


def test_padding_enters_no_statistics_of_the_batch_norms():
    model, variables, features, mask, target = parts(replace(SMALL, dropout=0.0))

    @jax.jit
    def told(features, mask, target):
        key = jax.random.key(0)
        call = listened(lambda: model.apply(variables, features, mask, key, target)["ctc"])
        out, told = call()
        return out, told["statistics"]

    more = lambda x: jnp.concatenate([x, jnp.zeros_like(x[:2])])  # noqa: E731
    out, one = told(features, mask, target)
    noise = jnp.where(mask[..., None], features, 9.0)
    other, two = told(more(noise), more(mask), more(target))
    np.testing.assert_allclose(other[:3][:, :2], out[:, :2], atol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), one, two)
    value, weight = one["encoder"]["layer_0"]["convolution"]["norm"]["mean"]
    assert value.shape == (12,) and weight == 12  # 6, 4 and 2 states


def test_each_state_sees_as_many_states_as_taps_on_both_sides():
    """Without attention between positions only the convolution mixes them: taps 5 reach two."""
    block = Block(replace(BLOCK, positions="none", convolution_norm="layer_norm"))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 9, 12)), jnp.float32)
    variables = draw(block, x, size=0.3)
    out = variables["params"]["attention"]["out"]
    variables["params"]["attention"]["out"] = jax.tree.map(jnp.zeros_like, out)
    seen = jax.jit(jax.jacobian(lambda x: block.apply(variables, x)[0, 4]))(x)[:, 0]
    assert np.flatnonzero(np.abs(seen).sum(axis=(0, 2))).tolist() == [2, 3, 4, 5, 6]


def test_a_layers_matrices_are_counted():
    variables = draw(Stack(BLOCK, 1), jnp.zeros((1, 3, 12)))
    sizes = {
        jax.tree_util.keystr(path): leaf.size
        for path, leaf in jax.tree_util.tree_leaves_with_path(variables["params"])
        if any(part in jax.tree_util.keystr(path) for part in ("kernel", "taps"))
    }
    position = sizes.pop("['layer_0']['attention']['position']['kernel']")  # not of a token
    assert sum(sizes.values()) == costs.active_parameters(BLOCK) and position == 12 * 12


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"block": "conformr"}, 'did you mean "conformer"'),
     ({"block": "parallel"}, 'convolution_width does not go with model.block = "parallel"'),
     ({"feed_forward": "shifted"}, "shifted"), ({"bins": 0}, "model.bins = 0"),
     ({"convolution_norm": "batch"}, 'did you mean "batch_norm"'),
     ({"norm_place": "post"}, 'needs model.norm_place = "pre"')],
)  # fmt: skip
def test_impossible_settings_are_refused(changes, words):
    with pytest.raises(LabError, match=words):
        replace(SMALL, **changes)


def test_a_decoder_has_no_convolution_and_other_bands_are_refused():
    with pytest.raises(LabError, match="sees later positions"):
        jax.eval_shape(Stack(BLOCK, 1, causal=True).init, jax.random.key(0), jnp.zeros((1, 3, 12)))
    model, variables, features, mask, _ = parts(SMALL)
    with pytest.raises(LabError, match="frames have 7 bands, the model reads model.bins = 8"):
        model.apply(variables, features[..., :7], mask)
    with pytest.raises(LabError, match="exceeds model.max_length = 64"):
        model.apply(variables, jnp.zeros((1, 65, 8)), jnp.ones((1, 65), bool))


def test_decoding_step_by_step_gives_the_decoders_logits():
    model, variables, features, mask, target = parts(SMALL)

    @jax.jit
    def run(features, mask, target):
        cache = model.apply(variables, features, mask, 4, method="init_cache")
        steps = []
        for i in range(4):
            logits, cache = model.apply(variables, target[:, i : i + 1], cache, method="step")
            steps.append(logits[:, 0])
        whole = model.apply(variables, features, mask, None, target)["attention"]
        return whole, jnp.stack(steps, axis=1)

    np.testing.assert_allclose(*run(features, mask, target), atol=1e-4)
